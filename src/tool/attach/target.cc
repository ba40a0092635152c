#include "src/tool/attach/target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/strip.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

// Files with debug information are large, and nothing needs it.
int NoDebugInfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

}  // namespace

bool IsLibc(const std::string& name) {
  return absl::StartsWith(name, "libc.so") || absl::StartsWith(name, "libc-2.") || absl::StartsWith(name, "libpthread");
}

bool IsLinker(const std::string& name) {
  return absl::StartsWith(name, "ld-linux") || absl::StartsWith(name, "ld-2.") || absl::StartsWith(name, "libdl");
}

std::string StatusOf(pid_t id, std::string_view key) { return StatusIn(Cat("/proc/", id, "/status"), key); }

std::string StatusIn(const std::string& file, std::string_view key) {
  const std::string text = internal::ReadProcFile(file.c_str());
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, Cat(key, ":"))) return std::string(absl::StripLeadingAsciiWhitespace(line));
  }
  return "";
}

std::string WhyNotPermitted(pid_t target, uid_t owner, uid_t user, int scope) {
  const std::string start = Cat("you may not attach to ", target, ": ");
  const std::string root = "run the command as root, or with the capability CAP_SYS_PTRACE (in Kubernetes: SYS_PTRACE)";
  if (scope == 3) {
    return Cat(start, "the system forbids it for everybody (kernel.yama.ptrace_scope is 3) until it is restarted");
  }
  if (owner != user && user != 0) return Cat(start, "it belongs to user ", owner, "; ", root);
  if (scope == 2) return Cat(start, "kernel.yama.ptrace_scope is 2; ", root);
  if (scope == 1 && user != 0) {
    return Cat(start, "the system lets you attach to your own child processes only (kernel.yama.ptrace_scope is 1); ",
               root, ", or set it to 0");
  }
  if (user == 0) return Cat(start, "this root has not the capability CAP_SYS_PTRACE; ", root);
  return Cat(start, "it has more rights than you, or has made itself unreadable (prctl(PR_SET_DUMPABLE)); ", root);
}

absl::StatusOr<std::unique_ptr<Target>> Target::Open(pid_t pid) {
  std::unique_ptr<Target> target(new Target(pid));
  struct stat process;
  if (stat(target->ProcPath("").c_str(), &process) != 0) return NotFound("there is no process ", pid);
  const std::string state = target->Status("State");
  if (state.empty() || state[0] == 'Z' || state[0] == 'X') return NotFound("process ", pid, " has ended");
  if (target->Status("VmSize").empty()) return NotFound(pid, " is a thread of the kernel, not a program");
  target->memory_.Reset(open(target->ProcPath("mem").c_str(), O_RDWR | O_CLOEXEC));
  if (target->memory_.get() < 0 && (errno == EACCES || errno == EPERM)) {
    const std::string scope = internal::ReadProcFile("/proc/sys/kernel/yama/ptrace_scope");
    return PermissionDenied(
        WhyNotPermitted(pid, process.st_uid, geteuid(), scope.empty() ? -1 : std::atoi(scope.c_str())));
  }
  if (target->memory_.get() < 0) return Unavailable(target->ProcPath("mem"), ": ", strerror(errno));
  target->ReadMaps();
  static const Dwfl_Callbacks callbacks = {dwfl_linux_proc_find_elf, NoDebugInfo, nullptr, nullptr};
  target->dwfl_.reset(dwfl_begin(&callbacks));
  if (target->dwfl_ == nullptr) return ResourceExhausted(dwfl_errmsg(-1));
  for (const MappedFile& file : target->files_) {
    dwfl_report_module(target->dwfl_.get(), target->OutsidePath(file.path).c_str(), file.start, file.end);
  }
  dwfl_report_end(target->dwfl_.get(), nullptr, nullptr);
  if (target->files_.empty()) return NotFound("process ", pid, " has ended");
  return target;
}

absl::Status Target::CheckIsThere() const {
  if (Get<char>(Program().start).has_value()) return absl::OkStatus();
  return Unavailable("the process has ended, or runs another program now");
}

std::string Target::ProcPath(std::string_view file) const { return Cat("/proc/", pid_, "/", file); }

std::string Target::OutsidePath(std::string_view path) const {
  return SharesFiles() ? std::string(path) : Cat(ProcPath("root"), path);
}

bool Target::SharesFiles() const {
  std::error_code error;
  struct stat mine;
  struct stat its;
  return fs::read_symlink("/proc/self/ns/mnt", error) == fs::read_symlink(ProcPath("ns/mnt"), error) && !error &&
         stat("/", &mine) == 0 && stat(ProcPath("root/").c_str(), &its) == 0 && mine.st_dev == its.st_dev &&
         mine.st_ino == its.st_ino;
}

pid_t Target::inner_pid() const {
  std::istringstream ids(Status("NSpid"));
  pid_t inner = pid_;
  while (ids >> inner) continue;
  return inner == 0 ? pid_ : inner;
}

std::vector<pid_t> Target::Threads() const {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(ProcPath("task"), error)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return threads;
}

void Target::ReadMaps() {
  std::error_code error;
  const std::string program = fs::read_symlink(ProcPath("exe"), error);
  std::ifstream maps(ProcPath("maps"));
  unsigned long long last_offset = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long start, end, offset;
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %*s %n", &start, &end, &offset, &path_at) < 3) continue;
    std::string path = line.substr(static_cast<size_t>(path_at));
    const bool is_device = absl::StartsWith(path, "/dev/") && !absl::StartsWith(path, "/dev/shm/");
    if (path.empty() || path[0] != '/' || is_device) continue;
    // The parts of a small file can begin in its first page.
    const bool is_same = !files_.empty() && files_.back().path == path;
    if (is_same && (offset != 0 || (last_offset == 0 && files_.back().end == start))) {
      files_.back().end = end;
    } else if (offset == 0) {
      const std::string name = path.substr(path.rfind('/') + 1);
      if (path == program) program_ = files_.size();
      files_.push_back({std::move(path), name, start, end});
    }
    last_offset = offset;
  }
}

const MappedFile* Target::FileAt(uint64_t address) const {
  for (const MappedFile& file : files_) {
    if (address >= file.start && address < file.end) return &file;
  }
  return nullptr;
}

const MappedFile* Target::Find(const std::vector<std::string_view>& starts) const {
  for (const MappedFile& file : files_) {
    if (absl::c_any_of(starts, [&](std::string_view start) { return file.name.rfind(start, 0) == 0; })) return &file;
  }
  return nullptr;
}

bool Target::Read(uint64_t address, void* to, size_t bytes) const {
  return pread(memory_.get(), to, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

bool Target::Write(uint64_t address, const void* from, size_t bytes) const {
  return pwrite(memory_.get(), from, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

std::string Target::Text(uint64_t address, size_t most) const {
  std::string text;
  for (char c = 0; text.size() < most && Read(address + text.size(), &c, 1) && c != '\0';) text += c;
  return text;
}

uint64_t Target::Symbol(const MappedFile& file, std::string_view name) const {
  Dwfl_Module* const module = dwfl_addrmodule(dwfl_.get(), file.start);
  const int count = module == nullptr ? 0 : dwfl_module_getsymtab(module);
  for (int i = 0; i < count; ++i) {
    GElf_Sym symbol;
    GElf_Addr address = 0;
    const char* const text = dwfl_module_getsym_info(module, i, &symbol, &address, nullptr, nullptr, nullptr);
    if (text == nullptr || symbol.st_shndx == SHN_UNDEF || GELF_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
    const std::string_view found = text;  // it can have a version: "dlopen@@GLIBC_2.34"
    if (found.substr(0, found.find('@')) == name) return address;
  }
  return 0;
}

std::vector<GElf_Phdr> Target::Segments(const MappedFile& file) const {
  std::vector<GElf_Phdr> segments;
  Dwfl_Module* const module = dwfl_addrmodule(dwfl_.get(), file.start);
  GElf_Addr bias = 0;
  Elf* const elf = module == nullptr ? nullptr : dwfl_module_getelf(module, &bias);
  size_t count = 0;
  if (elf == nullptr || elf_getphdrnum(elf, &count) != 0) return segments;
  for (int i = 0; i < static_cast<int>(count); ++i) {
    GElf_Phdr segment;
    if (gelf_getphdr(elf, i, &segment) == nullptr || segment.p_type != PT_LOAD) continue;
    segment.p_vaddr += bias;
    segments.push_back(segment);
  }
  return segments;
}

uint64_t Target::PlaceFor(std::string_view code) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::string there(code.size(), '\0');
  for (const MappedFile& file : files_) {
    // The C++ library is never unloaded, because it has unique symbols.
    const bool stays =
        &file == &Program() || IsLibc(file.name) || IsLinker(file.name) || absl::StartsWith(file.name, "libstdc++.so");
    const std::vector<GElf_Phdr> segments = stays ? Segments(file) : std::vector<GElf_Phdr>();
    for (const GElf_Phdr& segment : segments) {
      if ((segment.p_flags & (PF_X | PF_W)) != PF_X) continue;
      const uint64_t end = segment.p_vaddr + segment.p_filesz;
      const uint64_t page_end = (end + page - 1) & ~(page - 1);
      const uint64_t place = (end + 15) & ~uint64_t{15};
      const bool is_shared = absl::c_any_of(
          segments, [&](const GElf_Phdr& other) { return other.p_vaddr >= end && other.p_vaddr < page_end; });
      if (is_shared || place + code.size() > page_end || !Read(place, there.data(), there.size())) continue;
      if (there == code) return place;
      // Behind the end of the file there are zeros.
      std::string in_file(code.size(), '\0');
      std::ifstream stream(OutsidePath(file.path), std::ios::binary);
      stream.seekg(static_cast<std::streamoff>(segment.p_offset + (place - segment.p_vaddr)));
      stream.read(in_file.data(), static_cast<std::streamsize>(in_file.size()));
      if (there == in_file) return place;
    }
  }
  return 0;
}

}  // namespace hbmprof::tool
