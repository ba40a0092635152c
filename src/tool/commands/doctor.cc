// `hbmprof doctor`: reports what `hbmprof run` can record on this machine and of a program.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>

#include "src/protocol/attach.h"
#include "src/protocol/driver_slot.h"
#include "src/tool/commands/command.h"

namespace hbmprof::tool {
namespace {

struct DoctorOptions {
  std::string library;
  bool coverage_only = false;  // in the child process with the preloaded library
  bool entry_points = false;
  bool json = false;
  std::vector<std::string> command;
};

// What was found. A problem means that some allocations cannot be recorded.
struct DoctorFindings {
  explicit DoctorFindings(bool is_json) : answer(is_json) {}
  void Say(const std::string& topic, const std::string& text, bool is_problem = false) {
    answer.json["lines"].push_back({{"topic", topic}, {"text", text}, {"problem", is_problem}});
    answer.text += absl::StrFormat("%s%-16s %s\n", is_problem ? "! " : "  ", topic, Visible(text));
    if (is_problem) answer.exit_code = kFinding;
  }
  void Problem(const std::string& topic, const std::string& text) { Say(topic, ErrorLine(text), true); }

  bool has_opencl = false;
  Answer answer;
};

constexpr char kNoLayer[] = "loads no layer, so OpenCL is not recorded: Khronos's loader and ocl-icd 2.3.0 do";

// Initializes the driver and reports on it. The initialization creates no context.
void Driver(void* driver, DoctorFindings& findings) {
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
    return findings.Problem(
        "driver", error == 34
                      ? Cat(path, " is the toolkit's stub, not the driver: check LD_LIBRARY_PATH")
                      : Cat(path, " cannot be initialized: CUDA error ", error, has_name ? Cat(" (", name, ")") : ""));
  }
  int version = 0;
  int count = 0;
  if (get_version != nullptr) get_version(&version);
  if (get_count != nullptr) get_count(&count);
  findings.Say("driver", Cat(path, ", CUDA ", version / 1000, ".", version % 1000 / 10, ", ", count,
                             count == 1 ? " device" : " devices"));
}

// By the code of two functions, as the command `attach` does. Calls none.
void Attaching(void* driver, DoctorFindings& findings) {
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

constexpr char kAscendFile[] = "libascend_hal.so";

// A runtime with CUDA's functions by other names. The last two: how much a version counts for its two first numbers.
struct Runtime {
  const char *name, *prefix, *files[4];
  int major, minor;
};
constexpr Runtime kRuntimes[] = {
    {"HIP", "hip", {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so.10"}, 10000000, 100000},
    {"MUSA", "musa", {"libmusart.so.5", "libmusart.so.4", "libmusart.so.1.0", "libmusart.so"}, 10000, 100}};

void* Open(const Runtime& runtime) {
  void* library = nullptr;
  for (const char* const file : runtime.files) {
    if (library == nullptr) library = dlopen(file, RTLD_LAZY);
  }
  return library;
}

// Reports on the drivers of other vendors than NVIDIA. Returns whether there is one.
bool OtherDrivers(DoctorFindings& findings) {
  Dl_info info = {};
  bool has_runtime = false;
  for (const Runtime& runtime : kRuntimes) {
    void* const library = Open(runtime);
    const auto find = [&](const char* name) {
      return reinterpret_cast<int (*)(int*)>(dlsym(library, Cat(runtime.prefix, name).c_str()));
    };
    auto* const get_count = library == nullptr ? nullptr : find("GetDeviceCount");
    auto* const get_version = library == nullptr ? nullptr : find("RuntimeGetVersion");
    if (get_count == nullptr || dladdr(reinterpret_cast<void*>(get_count), &info) == 0) continue;
    has_runtime = true;
    int count = 0;
    int version = 0;
    if (get_version != nullptr) get_version(&version);
    if (const int error = get_count(&count); error != 0) {
      findings.Problem("driver", Cat(info.dli_fname, " finds no device: ", runtime.name, " error ", error));
    } else {
      findings.Say("driver",
                   Cat(info.dli_fname, ", ", runtime.name, " ", version / runtime.major, ".",
                       version % runtime.major / runtime.minor, ", ", count, count == 1 ? " device" : " devices"));
    }
  }
  void* const ascend = dlopen(kAscendFile, RTLD_LAZY);
  void* const allocate = ascend == nullptr ? nullptr : dlsym(ascend, "halMemAlloc");
  if (allocate != nullptr && dladdr(allocate, &info) != 0) findings.Say("driver", Cat(info.dli_fname, ", Ascend"));
  return has_runtime || allocate != nullptr;
}

void Nvml(DoctorFindings& findings) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (nvml == nullptr) {
    return findings.Say("NVML", "libnvidia-ml.so.1 is not found: `unaccounted` counts all processes on a device");
  }
  auto* init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  auto* get_text = reinterpret_cast<const char* (*)(int)>(dlsym(nvml, "nvmlErrorString"));
  if (const int error = init == nullptr ? -1 : init(); error != 0) {
    return findings.Say("NVML", Cat("libnvidia-ml.so.1 cannot be initialized: NVML error ", error,
                                    get_text != nullptr ? Cat(" (", get_text(error), ")") : "",
                                    ": `unaccounted` counts all processes on a device"));
  }
  findings.Say("NVML", "found: `unaccounted` counts this process only, if NVML sees its id (not in each container)");
}

// Prints the loader of OpenCL, whether it has loaded the injected library as a layer, and the platforms.
void PrintOpencl() {
  void* const loader = dlopen("libOpenCL.so.1", RTLD_LAZY);
  if (loader == nullptr) return;
  auto* get_ids = reinterpret_cast<int (*)(unsigned, void**, unsigned*)>(dlsym(loader, "clGetPlatformIDs"));
  auto* get_info =
      reinterpret_cast<int (*)(void*, unsigned, size_t, void*, size_t*)>(dlsym(loader, "clGetPlatformInfo"));
  Dl_info info = {};
  if (get_ids == nullptr || get_info == nullptr || dladdr(reinterpret_cast<void*>(get_ids), &info) == 0) return;
  void* platforms[16] = {};
  get_ids(16, platforms, nullptr);
  const auto* const is_layer = static_cast<const int*>(dlsym(RTLD_DEFAULT, "hbmprof_opencl_layer"));
  const bool has_layer = is_layer != nullptr && *is_layer != 0;
  std::string text = platforms[0] == nullptr ? "has no driver" : has_layer ? "loads the library as a layer" : kNoLayer;
  for (int i = 0; i < 16 && platforms[i] != nullptr; ++i) {
    char name[256] = "";
    get_info(platforms[i], 0x0902, sizeof(name), name, nullptr);
    text += Cat("; OpenCL:", i, " is ", name);
  }
  std::printf("OpenCL\t%s\t%s\n", info.dli_fname, text.c_str());
}

int PrintCoverage() {
  dlopen("libcuda.so.1", RTLD_LAZY);
  for (const Runtime& runtime : kRuntimes) Open(runtime);
  dlopen(kAscendFile, RTLD_LAZY);
  // Of the injected library (driver_shim.cc).
  using Coverage = void(void (*visit)(const char* name, const char* state, const char* reason, void*), void* argument);
  auto* const coverage = reinterpret_cast<Coverage*>(dlsym(RTLD_DEFAULT, "hbmprof_driver_coverage"));
  if (coverage == nullptr) return kFinding;
  const auto print = [](const char* name, const char* state, const char* reason, void*) {
    std::printf("%s\t%s\t%s\n", state, name, reason);
  };
  coverage(print, nullptr);
  std::fflush(stdout);  // a driver of OpenCL can end the process
  PrintOpencl();
  return kSuccess;
}

// Returns the path of the library; "" if it cannot be used.
std::string Library(const DoctorOptions& options, DoctorFindings& findings) {
  const absl::StatusOr<std::string> library = FindInjectedLibrary(options.library);
  if (!library.ok()) {
    findings.Problem("library", MessageOf(library.status()));
    return "";
  }
  const absl::StatusOr<Captured> query = RunAndCapture("/proc/self/exe", {"hbmprof", "doctor", "--coverage-only"},
                                                       {{"LD_PRELOAD", PreloadWith(*library)},
                                                        {kOpenclLayers, PreloadWith(*library, kOpenclLayers)},
                                                        {"HBMPROF_GPU_OUTPUT", ""}},
                                                       false);
  if (!query.ok() || query->text.empty()) {
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
  for (const auto& [path, text] : std::exchange(by_state["OpenCL"], {})) {
    findings.Say("OpenCL", Cat(path, " ", text), text.rfind(kNoLayer, 0) == 0);
    findings.has_opencl = text.find("; OpenCL:") != std::string::npos;
  }
  if (query->end.signal != 0 || query->end.code != kSuccess) {
    findings.Problem("OpenCL", Cat("a driver of OpenCL has ended this check (",
                                   query->end.signal != 0 ? strsignal(query->end.signal) : "exit", ")"));
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

// Reports why the program cannot be injected. `library` is the path of the injected library, or empty if it cannot be
// used.
void ReportStart(const std::string& path, const std::string& library, DoctorFindings& findings) {
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

// Reports whether a program can be recorded. `library`: as for ReportStart.
void Program(const std::string& command, const std::string& library, DoctorFindings& findings, int depth = 0) {
  const absl::StatusOr<std::string> path = FindProgram(command);
  if (!path.ok()) return findings.Problem("program", MessageOf(path.status()));
  const ProgramHead head = ReadProgramHead(*path);
  if (head.kind == ProgramHead::Kind::kUnknown) {
    return findings.Problem("program", Cat(*path, " is neither an ELF program nor a script"));
  }
  if (head.kind == ProgramHead::Kind::kScript && depth < 4) {
    findings.Say("program", Cat(*path, " is a script for ", head.interpreter));
    return Program(head.interpreter, library, findings, depth + 1);
  }
  findings.Say("program", *path);
  ReportStart(*path, library, findings);
}

absl::StatusOr<int> RunDoctor(const DoctorOptions& options) {
  if (options.coverage_only) return PrintCoverage();
  DoctorFindings findings(options.json);
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver != nullptr) {
    Driver(driver, findings);
    Attaching(driver, findings);
    Nvml(findings);
  }
  const bool has_other = OtherDrivers(findings);
  const std::string library = Library(options, findings);
  if (driver == nullptr && has_other) {
    findings.Say("driver", "libcuda.so.1 is not found: CUDA is not recorded here");
  } else if (driver == nullptr && findings.has_opencl) {
    const int exit_code = findings.answer.exit_code;
    findings.Say("driver", "libcuda.so.1 is not found: only OpenCL is recorded here", true);
    findings.answer.exit_code = exit_code;
  } else if (driver == nullptr) {
    findings.Problem("driver", "libcuda.so.1 is not found: no GPU here, or the container was started without it");
  }
  if (!options.command.empty()) Program(options.command.front(), library, findings);
  return findings.answer.Print();
}

}  // namespace

Command AddDoctorCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("doctor", "Report what `hbmprof run` can record here");
  auto options = std::make_shared<DoctorOptions>();
  arguments->add_flag("--entry-points", options->entry_points,
                      "List the driver's calls: tracked, passed through, absent");
  arguments->add_option("--library", options->library, "Another libhbmprof_gpu.so")->type_name("FILE");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--coverage-only", options->coverage_only)->group("");
  arguments->add_option("PROGRAM", options->command, "After --: a program to check");
  arguments->footer(
      "A line that begins with ! shows a problem: some allocations cannot be recorded. Then the exit code is 1, but 0\n"
      "if the only problem is that CUDA is missing, and OpenCL can be recorded.");
  return {arguments, [options] { return RunDoctor(*options); }};
}

}  // namespace hbmprof::tool
