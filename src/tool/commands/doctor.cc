// `hbmprof doctor`: reports what `hbmprof run` can record on this machine and of a program.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "hbmprof/cuda_coverage.h"
#include "src/base/descriptor.h"
#include "src/base/references.h"
#include "src/protocol/attach.h"
#include "src/protocol/driver_slot.h"
#include "src/protocol/python_versions.h"
#include "src/tool/commands/command.h"
#include "src/tool/commands/injection.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct DoctorOptions {
  std::string library;
  bool coverage_only = false;  // in the child process with the preloaded library
  bool entry_points = false;
  std::vector<std::string> command;
};

// Prints the findings. A problem means that some allocations cannot be recorded.
class Findings {
 public:
  void Say(const std::string& topic, const std::string& text) { Line("  ", topic, text); }
  void Problem(const std::string& topic, const std::string& text) {
    Line("! ", topic, ErrorLine(text));
    has_problem_ = true;
  }
  bool has_problem() const { return has_problem_; }

 private:
  static void Line(const char* mark, const std::string& topic, const std::string& text) {
    Print(absl::StrFormat("%s%-16s %s\n", mark, topic, Visible(text)));
  }
  bool has_problem_ = false;
};

// As root, the driver and NVML make device files when they are initialized, even if the kernel has no driver. Without
// this right they cannot, nor can the programs that they start.
void KeepFromMakingDeviceFiles() {
  if (geteuid() != 0 || access("/proc/driver/nvidia", F_OK) == 0) return;
  prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, rights) != 0) return;
  rights[CAP_TO_INDEX(CAP_MKNOD)].effective &= ~CAP_TO_MASK(CAP_MKNOD);
  syscall(SYS_capset, &header, rights);
}

// Initializes the driver and reports on it. The initialization creates no context.
void Driver(Findings& findings) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) {
    findings.Problem("driver", "libcuda.so.1 is not found: no GPU here, or the container was started without it");
    return;
  }
  const auto find = [&](const char* name) { return dlsym(driver, name); };
  auto* init = reinterpret_cast<int (*)(unsigned)>(find("cuInit"));
  auto* get_version = reinterpret_cast<int (*)(int*)>(find("cuDriverGetVersion"));
  auto* get_count = reinterpret_cast<int (*)(int*)>(find("cuDeviceGetCount"));
  Dl_info info = {};
  const std::string path = init != nullptr && dladdr(reinterpret_cast<void*>(init), &info) != 0 ? info.dli_fname : "?";
  const int error = init == nullptr ? -1 : init(0);
  if (error != 0) {
    auto* get_name = reinterpret_cast<int (*)(int, const char**)>(find("cuGetErrorName"));
    const char* name = nullptr;
    const bool has_name = get_name != nullptr && get_name(error, &name) == 0 && name != nullptr;
    findings.Problem("driver", error == 34 ? Cat(path, " is the toolkit's stub, not the driver: check LD_LIBRARY_PATH")
                                           : Cat(path, " cannot be initialized: CUDA error ", error,
                                                 has_name ? Cat(" (", name, ")") : ""));
    return;
  }
  int version = 0;
  int count = 0;
  if (get_version != nullptr) get_version(&version);
  if (get_count != nullptr) get_count(&count);
  findings.Say("driver", Cat(path, ", CUDA ", version / 1000, ".", version % 1000 / 10, ", ", count,
                             count == 1 ? " device" : " devices"));
}

// By the code of two functions, as the command `attach` does. Calls none.
void Attaching(Findings& findings) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return;
  const auto has_slot = [&](const char* name) {
    const void* const entry = dlsym(driver, name);
    return entry != nullptr &&
           internal::DriverSlotOf(static_cast<const unsigned char*>(entry), reinterpret_cast<uintptr_t>(entry)) != 0;
  };
  findings.Say("attach", has_slot("cuMemAlloc_v2") && has_slot("cuMemFree_v2")
                             ? "the driver's functions have a form that `hbmprof attach` knows"
                             : "the driver's functions have an unknown form: `hbmprof attach` refuses (known: "
                               "drivers " HBMPROF_KNOWN_DRIVERS ")");
}

void Nvml(Findings& findings) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (nvml == nullptr) {
    findings.Say("NVML", "libnvidia-ml.so.1 is not found: `unaccounted` counts all processes on a device");
    return;
  }
  auto* init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  auto* get_text = reinterpret_cast<const char* (*)(int)>(dlsym(nvml, "nvmlErrorString"));
  if (const int error = init == nullptr ? -1 : init(); error != 0) {
    findings.Say("NVML", Cat("libnvidia-ml.so.1 cannot be initialized: NVML error ", error,
                             get_text != nullptr ? Cat(" (", get_text(error), ")") : "",
                             ": `unaccounted` counts all processes on a device"));
    return;
  }
  std::error_code error;
  const std::string group = internal::ReadProcFile("/proc/1/cgroup");
  const bool container = std::filesystem::exists("/.dockerenv", error) || group.find("docker") != std::string::npos ||
                         group.find("kubepods") != std::string::npos;
  findings.Say("NVML", container
                           ? "found; in a container it may not find this process, and `unaccounted` then counts all "
                             "processes on a device"
                           : "found: `unaccounted` counts this process only");
}

void Limits(Findings& findings) {
  std::string memory = internal::ReadProcFile("/sys/fs/cgroup/memory.max");
  if (memory.empty()) memory = internal::ReadProcFile("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  char* end = nullptr;
  const long long limit = std::strtoll(memory.c_str(), &end, 10);
  // If there is no limit, cgroup version 1 writes a number near INT64_MAX.
  const bool limited = end != memory.c_str() && limit < (1ll << 60);
  findings.Say("host memory", Cat(limited ? Cat("the container may use ", Bytes(limit)) : "no container limit",
                                  "; hbmprof takes about 45 bytes for each live buffer"));
  rlimit locked = {};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) {
    findings.Say("locked memory", Cat("limited to ", Bytes(static_cast<int64_t>(locked.rlim_cur)),
                                      "; allocating pinned memory can fail, with or without hbmprof"));
  }
}

int PrintCoverage() {
  dlopen("libcuda.so.1", RTLD_LAZY);
  const absl::StatusOr<std::vector<CudaEntryPoint>> coverage = CudaCoverage();
  if (!coverage.ok()) return kFinding;
  for (const CudaEntryPoint& entry : *coverage) {
    std::printf("%s\t%s\t%s\n", CudaEntryStateName(entry.state), entry.name.c_str(), entry.note.c_str());
  }
  return kSuccess;
}

// Returns the path of the library; "" if it cannot be used.
std::string Library(const DoctorOptions& options, Findings& findings) {
  const absl::StatusOr<std::string> library = FindInjectedLibrary(options.library);
  if (!library.ok()) {
    findings.Problem("library", MessageOf(library.status()));
    return "";
  }
  const absl::StatusOr<Captured> query =
      RunAndCapture("/proc/self/exe", {"hbmprof", "doctor", "--coverage-only"},
                    {{"LD_PRELOAD", PreloadWith(*library)}, {"HBMPROF_CUDA_OUTPUT", ""}}, false);
  if (!query.ok() || query->end.signal != 0 || query->end.code != kSuccess) {
    findings.Problem("library",
                     Cat(*library, " cannot be preloaded here (see the message of the dynamic linker above)"));
    return "";
  }
  findings.Say("library", Cat(*library, " can be preloaded"));
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> by_state;
  std::istringstream lines(query->text);
  for (std::string state, name, note;
       std::getline(lines, state, '\t') && std::getline(lines, name, '\t') && std::getline(lines, note);) {
    by_state[state].push_back({name, note});
  }
  findings.Say("entry points", Cat(by_state["tracked"].size(), " tracked, ", by_state["passed through"].size(),
                                   " passed through, ", by_state["absent"].size(), " absent from the driver",
                                   options.entry_points ? "" : " (--entry-points lists them)"));
  if (!options.entry_points) return *library;
  for (const auto& [state, entries] : by_state) {
    for (const auto& [name, note] : entries) findings.Say("", Cat(name, ": ", state, note.empty() ? "" : ": ", note));
  }
  return *library;
}

struct Program {
  bool elf = false;
  bool symbols = false;
  bool debug = false;
  bool unwind_tables = false;
  // The functions Framework::report whose calls in this library the injected library can interpose.
  std::vector<std::string_view> reports;
  std::vector<std::string> needed;
  int functions = 0;
  int frame_pointer_functions = 0;
  // The version of Python, if the program is an interpreter or is linked with one: "3.11.2" or "3.11". Else empty.
  std::string python;
  int python_minor = 0;
  bool python_is_free_threaded = false;
};

// A section of symbols, relocations or dynamic tags in a file with the contents `bytes`.
struct Section {
  Elf* elf;
  Elf_Scn* section;
  GElf_Shdr header;
  std::string_view bytes;

  std::string_view Text(uint64_t offset) const {
    const char* const text = elf_strptr(elf, header.sh_link, offset);
    return text == nullptr ? std::string_view() : text;
  }

  // Calls visit(entry) for each entry. `get`: gelf_getsym, gelf_getrela or gelf_getdyn.
  template <typename Entry, typename Visit>
  void ForEach(Entry* (*get)(Elf_Data*, int, Entry*), const Visit& visit) const {
    Elf_Data* const data = elf_getdata(section, nullptr);
    if (data == nullptr || header.sh_entsize == 0) return;
    for (size_t i = 0; i < header.sh_size / header.sh_entsize; ++i) {
      Entry entry;
      if (get(data, static_cast<int>(i), &entry) != nullptr) visit(entry);
    }
  }

  // Returns the first `size` bytes of what a symbol names; empty if they are not in the file.
  std::string_view BytesOf(const GElf_Sym& symbol, size_t size) const {
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= SHN_LORESERVE) return {};
    Elf_Scn* const holder = elf_getscn(elf, symbol.st_shndx);
    GElf_Shdr of;
    if (holder == nullptr || gelf_getshdr(holder, &of) == nullptr || of.sh_type == SHT_NOBITS) return {};
    const uint64_t offset = symbol.st_value - of.sh_addr + of.sh_offset;
    if (symbol.st_value < of.sh_addr || offset > bytes.size() || bytes.size() - offset < size) return {};
    return bytes.substr(offset, size);
  }
};

// Finds the version of a Python interpreter: from Py_Version, or before 3.11 from the functions that it exports.
void FindPython(const Section& symbols, Program& program) {
  bool is_python = false;
  int minor = 7;
  unsigned long version = 0;
  symbols.ForEach(&gelf_getsym, [&](const GElf_Sym& symbol) {
    if (symbol.st_shndx == SHN_UNDEF) return;
    const std::string_view name = symbols.Text(symbol.st_name);
    if (name == "_PyRuntime") is_python = true;
    if (name == "PyCode_NewWithPosOnlyArgs") minor = std::max(minor, 8);
    if (name == "PyFrame_GetCode") minor = std::max(minor, 9);
    if (name == "PyIter_Send") minor = std::max(minor, 10);
    if (name != "Py_Version") return;
    const std::string_view value = symbols.BytesOf(symbol, sizeof(version));
    if (!value.empty()) std::memcpy(&version, value.data(), sizeof(version));
  });
  if (!is_python) return;
  program.python_minor = version != 0 ? static_cast<int>(version >> 16 & 0xff) : minor;
  program.python = Cat("3.", program.python_minor, version != 0 ? Cat(".", version >> 8 & 0xff) : std::string());
}

// Finds the version for a program that is linked with an interpreter. Takes it from the name of the library.
void FindLinkedPython(Program& program) {
  constexpr std::string_view kStart = "libpython3.";
  for (const std::string& name : program.needed) {
    if (!program.python.empty() || name.rfind(kStart, 0) != 0) continue;
    char* end = nullptr;
    program.python_minor = static_cast<int>(std::strtol(name.c_str() + kStart.size(), &end, 10));
    if (program.python_minor == 0) continue;
    program.python = Cat("3.", program.python_minor);
    program.python_is_free_threaded = *end == 't';
  }
}

// Returns whether the function with these 16 bytes at its start begins with a frame record.
bool KeepsFramePointer(std::string_view start) {
#if defined(__aarch64__)
  for (size_t i = 0; i < start.size(); i += sizeof(uint32_t)) {
    uint32_t instruction;
    std::memcpy(&instruction, start.data() + i, sizeof(instruction));
    // stp x29, x30, [sp, #-n]! or stp x29, x30, [sp, #n]
    if ((instruction & 0xff407fff) == 0xa9007bfd) return true;
  }
  return false;
#else
  // endbr64, if present; push %rbp; mov %rsp,%rbp
  if (start.substr(0, 4) == std::string_view("\xf3\x0f\x1e\xfa", 4)) start.remove_prefix(4);
  return start.substr(0, 4) == std::string_view("\x55\x48\x89\xe5", 4);
#endif
}

void CountFramePointers(const Section& symbols, Program& program) {
  constexpr int kEnough = 5000;
  constexpr size_t kStart = 16;
  symbols.ForEach(&gelf_getsym, [&](const GElf_Sym& symbol) {
    if (GELF_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size < kStart || program.functions >= kEnough) return;
    const std::string_view start = symbols.BytesOf(symbol, kStart);
    if (start.empty()) return;
    ++program.functions;
    if (KeepsFramePointer(start)) ++program.frame_pointer_functions;
  });
}

// A framework whose allocator reports each block by a call of the function `report`. The call is in `library`.
struct Framework {
  const char* name;
  const char* library;  // how the file name begins
  const char* report;
  const char* allocator;
};
constexpr Framework kFrameworks[] = {
    {"PyTorch", "libc10_cuda.so", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", "its caching allocator"},
    {"TensorFlow", "libtensorflow_framework.so",
     "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll", "its BFC allocator"},
};

// Adds to program.reports the functions Framework::report to which a section of relocations refers: functions of other
// libraries, and functions of this library that it calls through its procedure linkage table.
void FindReports(const Section& relocations, Program& program) {
  Section symbols = {relocations.elf, elf_getscn(relocations.elf, relocations.header.sh_link), {}, relocations.bytes};
  if (symbols.section == nullptr || gelf_getshdr(symbols.section, &symbols.header) == nullptr) return;
  Elf_Data* const data = elf_getdata(symbols.section, nullptr);
  relocations.ForEach(&gelf_getrela, [&](const GElf_Rela& entry) {
    GElf_Sym symbol;
    const uint64_t number = GELF_R_SYM(entry.r_info);
    if (number == 0 || gelf_getsym(data, static_cast<int>(number), &symbol) == nullptr) return;
    if (symbol.st_shndx != SHN_UNDEF && GELF_R_TYPE(entry.r_info) != internal::kCallSlot) return;
    for (const Framework& framework : kFrameworks) {
      if (symbols.Text(symbol.st_name) == framework.report) program.reports.push_back(framework.report);
    }
  });
}

void ExamineSection(const Section& section, std::string_view name, Program& program) {
  if (name == ".debug_info") program.debug = true;
  switch (section.header.sh_type) {
    case SHT_SYMTAB:
      program.symbols = true;
      CountFramePointers(section, program);
      break;
    case SHT_DYNSYM:
      FindPython(section, program);
      break;
    case SHT_RELA:
      FindReports(section, program);
      break;
    case SHT_DYNAMIC:
      section.ForEach(&gelf_getdyn, [&](const GElf_Dyn& entry) {
        if (entry.d_tag == DT_NEEDED) program.needed.emplace_back(section.Text(entry.d_un.d_val));
      });
  }
}

Program Examine(std::string_view bytes) {
  Program program;
  elf_version(EV_CURRENT);
  Elf* elf = elf_memory(const_cast<char*>(bytes.data()), bytes.size());
  program.elf = elf != nullptr && elf_kind(elf) == ELF_K_ELF;
  size_t count = 0;
  if (program.elf) elf_getphdrnum(elf, &count);
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr segment;
    if (gelf_getphdr(elf, static_cast<int>(i), &segment) == nullptr) continue;
    program.unwind_tables = program.unwind_tables || segment.p_type == PT_GNU_EH_FRAME;
  }
  size_t names = 0;
  if (program.elf) elf_getshdrstrndx(elf, &names);
  for (Section section = {elf, nullptr, {}, bytes}; program.elf;) {
    section.section = elf_nextscn(elf, section.section);
    if (section.section == nullptr) break;
    if (gelf_getshdr(section.section, &section.header) == nullptr) continue;
    const char* const name = elf_strptr(elf, names, section.header.sh_name);
    ExamineSection(section, name == nullptr ? "" : name, program);
  }
  elf_end(elf);
  FindLinkedPython(program);
  return program;
}

void Python(const Program& program, Findings& findings) {
  if (program.python.empty()) return;
  const bool is_known = program.python_minor >= internal::kFirstPythonMinor &&
                        program.python_minor <= internal::kLastPythonMinor && !program.python_is_free_threaded;
  if (is_known) {
    findings.Say("Python",
                 Cat(program.python, ": stacks have the Python functions (HBMPROF_UNWINDER=native turns that off)"));
  } else {
    findings.Problem("Python",
                     Cat(program.python, program.python_is_free_threaded ? ", free-threaded" : "",
                         ": Python functions are not in the stacks; hbmprof can read 3.", internal::kFirstPythonMinor,
                         " to 3.", internal::kLastPythonMinor, ", and no free-threaded build. In JAX, set ",
                         "JAX_SEND_TRACEBACK_TO_RUNTIME=ON: then outputs of executions have a label call_location"));
  }
}

std::string NeededLike(const Program& program, const std::string& start) {
  for (const std::string& name : program.needed) {
    if (name.rfind(start, 0) == 0) return name;
  }
  return "";
}

void FrameworkLibrary(const Framework& framework, const std::string& path, Findings& findings) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return findings.Problem(framework.name, MessageOf(bytes.status()));
  const std::vector<std::string_view> reports = Examine(*bytes).reports;
  if (absl::c_linear_search(reports, framework.report)) {
    findings.Say(framework.name, Cat(path, " reports the blocks of ", framework.allocator, ": they are shown"));
  } else {
    findings.Problem(framework.name,
                     Cat(path, " reports no blocks of ", framework.allocator, ": only its segments are shown"));
  }
}

// Reports why the program cannot be injected. `library` is the path of the injected library, or empty if it cannot be
// used.
void ReportStart(const std::string& path, const std::string& library, Findings& findings) {
  struct stat info = {};
  stat(path.c_str(), &info);
  if (ReadProgramHead(path).kind == ProgramHead::Kind::kStatic) {
    findings.Problem("", "statically linked: nothing can be preloaded into it");
  }
  if (const std::string reason = WhyNotInjected(path, library); !reason.empty()) {
    findings.Problem("", Cat("`hbmprof run` will not inject it: ", reason));
  }
  if ((info.st_mode & (S_ISUID | S_ISGID)) != 0 && geteuid() != 0) {
    findings.Problem("", "set-user-id: the system ignores LD_PRELOAD for it; run it as its owner");
  }
  if (getxattr(path.c_str(), "security.capability", nullptr, 0) > 0 && geteuid() != 0) {
    findings.Problem("", "has file capabilities: the system ignores LD_PRELOAD for it");
  }
}

void ReportCuda(const Program& program, bool looks_up, Findings& findings) {
  const std::string runtime = NeededLike(program, "libcudart.so");
  const std::string driver = NeededLike(program, "libcuda.so");
  findings.Say("CUDA", !runtime.empty() ? Cat("the shared runtime, ", runtime, ": tracked through the driver")
                       : looks_up       ? "the static runtime is in the program: tracked through the driver"
                       : !driver.empty()
                           ? "the driver, linked: tracked"
                           : "the program itself does not use it; CUDA calls of its libraries are also tracked");
  for (const Framework& framework : kFrameworks) {
    if (NeededLike(program, framework.library).empty()) continue;
    findings.Say(framework.name,
                 Cat("linked: `hbmprof doctor -- PATH/", framework.library, "` reports whether its blocks are shown"));
  }
}

// Reports how complete the stacks of the program are, and which names they have.
void ReportStacks(const Program& program, Findings& findings) {
  if (program.functions > 0) {
    findings.Say("frame pointers",
                 Cat(FormatPercent(program.frame_pointer_functions, program.functions), " of ", program.functions,
                     " functions; ",
                     program.unwind_tables ? "with its unwind tables, stacks are complete without them"
                                           : "the program has no unwind tables"));
  } else {
    findings.Say("frame pointers", "unknown: no symbols");
  }
  if (!program.unwind_tables && program.frame_pointer_functions * 2 < program.functions) {
    findings.Problem("", "neither unwind tables nor frame pointers: stacks will be short");
  }
  findings.Say("symbols", !program.symbols ? "stripped: only exported functions have names"
                          : program.debug  ? "function names, and lines (hbmprof symbolize)"
                                           : "function names, no lines: build with -g for those");
}

// Reports on a program, or on a library of a framework. `library`: as for ReportStart.
void Target(const std::string& command, const std::string& library, Findings& findings, int depth = 0) {
  for (const Framework& framework : kFrameworks) {
    if (std::filesystem::path(command).filename().string().rfind(framework.library, 0) == 0) {
      return FrameworkLibrary(framework, command, findings);
    }
  }
  const absl::StatusOr<std::string> path = FindProgram(command);
  if (!path.ok()) return findings.Problem("program", MessageOf(path.status()));
  const absl::StatusOr<std::string> bytes = ReadFile(*path);
  if (!bytes.ok()) return findings.Problem("program", MessageOf(bytes.status()));
  const ProgramHead head = ReadProgramHead(*path);
  if (head.kind == ProgramHead::Kind::kScript && depth < 4) {
    findings.Say("program", Cat(*path, " is a script for ", head.interpreter));
    return Target(head.interpreter, library, findings, depth + 1);
  }
  const Program program = Examine(*bytes);
  if (!program.elf) return findings.Problem("program", Cat(*path, " is neither an ELF program nor a script"));
  findings.Say("program", *path);
  ReportStart(*path, library, findings);
  ReportCuda(program, bytes->find("cuGetProcAddress") != std::string::npos, findings);
  Python(program, findings);
  ReportStacks(program, findings);
}

absl::StatusOr<int> RunDoctor(const DoctorOptions& options) {
  if (options.coverage_only) return PrintCoverage();
  Findings findings;
  KeepFromMakingDeviceFiles();
  Driver(findings);
  Attaching(findings);
  Nvml(findings);
  findings.Say("toolkit", FindProgram("nvcc").value_or("no nvcc; profiling does not need it"));
  Limits(findings);
  std::fflush(stdout);
  const std::string library = Library(options, findings);
  if (!options.command.empty()) Target(options.command.front(), library, findings);
  return findings.has_problem() ? kFinding : kSuccess;
}

}  // namespace

Command AddDoctorCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("doctor", "Report what `hbmprof run` can record here");
  auto options = std::make_shared<DoctorOptions>();
  arguments->add_flag("--entry-points", options->entry_points,
                      "List the driver's calls: tracked, passed through, absent");
  arguments->add_option("--library", options->library, "Another libhbmprof_cuda.so")->type_name("FILE");
  arguments->add_flag("--coverage-only", options->coverage_only)->group("");
  arguments->add_option("PROGRAM", options->command,
                        "After --: a program to check, or a library: libc10_cuda.so, libtensorflow_framework.so.2");
  arguments->footer(
      "A line that begins with ! shows a problem: some allocations cannot be recorded. Then the exit code is 1.");
  return {arguments, [options] { return RunDoctor(*options); }};
}

}  // namespace hbmprof::tool
