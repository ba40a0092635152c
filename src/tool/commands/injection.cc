#include "src/tool/commands/injection.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

// The processor for which this command and the injected libraries are built.
struct Processor {
  uint16_t machine;  // in ELF files
  const char* name;
  const char* linker;  // first part of the file name of glibc's dynamic linker
};
#if defined(__aarch64__)
constexpr Processor kProcessor = {EM_AARCH64, "aarch64", "ld-linux-aarch64.so"};
#else
constexpr Processor kProcessor = {EM_X86_64, "x86-64", "ld-linux-x86-64.so"};
#endif

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Returns the program in the line "#!..."; for env, the program that env looks up.
std::string ScriptInterpreter(const std::string& line) {
  std::istringstream words(line.substr(2));
  std::string interpreter;
  words >> interpreter;
  if (FileName(interpreter) != "env") return interpreter;
  for (std::string word; words >> word;) {
    if (word[0] != '-' && word.find('=') == std::string::npos) return word;
  }
  return interpreter;
}

// If SIGCHLD were ignored, this process could not wait for its children. So it sets the default action here. The
// children inherit the original setting.
const struct sigaction& InheritedChildAction() {
  static const struct sigaction inherited = [] {
    struct sigaction before = {};
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, &before);
    return before;
  }();
  return inherited;
}

// Runs in the child. Returns only after a failure, with the errno.
void Execute(const std::string& program, const std::vector<std::string>& command, const ChildSetup& setup) {
  for (const auto& [name, value] : setup.environment) setenv(name.c_str(), value.c_str(), 1);
  if (setup.output >= 0) dup2(setup.output, STDOUT_FILENO);
  if (setup.errors >= 0) dup2(setup.errors, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  if (setup.prepare) setup.prepare();
  sigaction(SIGCHLD, &InheritedChildAction(), nullptr);
  execv(program.c_str(), arguments.data());
  if (errno != ENOEXEC) return;
  char shell[] = "/bin/sh";
  arguments[0] = const_cast<char*>(program.c_str());
  arguments.insert(arguments.begin(), shell);
  execv(shell, arguments.data());
}

}  // namespace

absl::StatusOr<std::string> FindInjectedLibrary(const std::string& given) {
  std::error_code error;
  std::vector<std::string> candidates;
  if (!given.empty()) {
    candidates.push_back(given);
  } else {
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const char* folder : {"../" HBMPROF_LIBDIR "/hbmprof", "../inject", "."}) {
      candidates.push_back((here / folder / "libhbmprof_gpu.so").lexically_normal());
    }
  }
  for (const std::string& candidate : candidates) {
    if (fs::is_regular_file(candidate, error)) {
      const std::string path = fs::canonical(candidate, error);
      if (path.find_first_of(" :$") == std::string::npos) return path;
      return InvalidArgument(
          path,
          " cannot be preloaded: the dynamic linker treats a space or a colon as the end of a path and a "
          "dollar sign as a variable; copy the library to a path without these characters and name it with --library");
    }
  }
  return NotFound("libhbmprof_gpu.so was not found. Tried: ", absl::StrJoin(candidates, ", "),
                  ". It is built for x86-64 and aarch64 Linux; --library FILE names another file");
}

absl::StatusOr<std::string> FindProgram(const std::string& command) {
  std::vector<std::string> candidates;
  if (command.find('/') != std::string::npos) {
    candidates.push_back(command);
  } else {
    const char* path = std::getenv("PATH");
    const std::vector<std::string> folders = absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':');
    for (const std::string& folder : folders) candidates.push_back(Cat(folder.empty() ? "." : folder, "/", command));
  }
  bool forbidden = false;
  std::error_code error;
  for (const std::string& candidate : candidates) {
    if (fs::is_regular_file(candidate, error) && access(candidate.c_str(), X_OK) == 0) return candidate;
    forbidden = forbidden || access(candidate.c_str(), F_OK) == 0;
  }
  if (forbidden) return PermissionDenied(command, " exists, but you may not execute it");
  return NotFound(command, ": no such program");
}

ProgramHead ReadProgramHead(const std::string& program) {
  ProgramHead head;
  std::ifstream file(program, std::ios::binary);
  std::string start(4096, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  file.clear();
  if (start.rfind("#!", 0) == 0) {
    head.kind = ProgramHead::Kind::kScript;
    head.interpreter = ScriptInterpreter(start.substr(0, start.find('\n')));
    return head;
  }
  Elf64_Ehdr header;
  if (start.size() < sizeof(header) || start.compare(0, SELFMAG, ELFMAG) != 0) return head;
  std::memcpy(&header, start.data(), sizeof(header));
  head.kind = ProgramHead::Kind::kOtherProcessor;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kProcessor.machine) return head;
  head.kind = ProgramHead::Kind::kStatic;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    file.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof(segment)));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof(segment))) break;
    if (segment.p_type != PT_INTERP) continue;
    head.kind = ProgramHead::Kind::kDynamic;
    std::string path(std::min<size_t>(segment.p_filesz, PATH_MAX), '\0');
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    file.read(path.data(), static_cast<std::streamsize>(path.size()));
    head.interpreter = path.c_str();
    break;
  }
  return head;
}

std::string PreloadWith(const std::string& library, const char* variable) {
  const char* value = std::getenv(variable);
  const std::string before = value == nullptr ? "" : value;
  const std::vector<std::string> paths = absl::StrSplit(before, absl::ByAnyChar(" :"));
  if (absl::c_linear_search(paths, library)) return before;
  return before.empty() ? library : Cat(library, ":", before);
}

std::string WhyNotInjected(const std::string& program, const std::string& library) {
  std::string file = program;
  ProgramHead head = ReadProgramHead(file);
  for (int depth = 0; depth < 4 && head.kind == ProgramHead::Kind::kScript; ++depth) {
    const absl::StatusOr<std::string> interpreter = FindProgram(head.interpreter);
    if (!interpreter.ok()) return "";
    file = *interpreter;
    head = ReadProgramHead(file);
  }
  const std::string name = file == program ? "it" : file;
  if (head.kind == ProgramHead::Kind::kOtherProcessor) {
    return Cat(name, " is built for another processor than ", kProcessor.name);
  }
  // LD_PRELOAD has no effect on a static program, but the programs that it starts can be injected.
  if (head.kind != ProgramHead::Kind::kDynamic) return "";
  if (FileName(head.interpreter).rfind(kProcessor.linker, 0) != 0) {
    return Cat(name, " is built with another C library than glibc (its dynamic linker is ", head.interpreter, ")");
  }
  if (library.empty()) return "";
  // The dynamic linker lists the libraries that it will load.
  const absl::StatusOr<Captured> listed =
      RunAndCapture(head.interpreter, {head.interpreter, "--list", file}, {{"LD_PRELOAD", PreloadWith(library)}}, true);
  if (!listed.ok()) return "";
  for (const char* sanitizer : {"libasan.so", "libclang_rt.asan", "libclang_rt.hwasan"}) {
    if (listed->text.find(sanitizer) == std::string::npos) continue;
    return Cat(name, " loads ", sanitizer,
               ", and AddressSanitizer ends a program in which another library comes first");
  }
  std::istringstream lines(listed->text);
  for (std::string line; std::getline(lines, line);) {
    const bool of_library = line.find(library) != std::string::npos;
    const bool failed =
        line.find("cannot be preloaded") != std::string::npos || line.find("(required by ") != std::string::npos;
    if (of_library && failed) return Cat("the dynamic linker says: ", line);
  }
  return "";
}

absl::StatusOr<int> StartProcess(const std::string& program, const std::vector<std::string>& command,
                                 const ChildSetup& setup) {
  InheritedChildAction();
  // The child stores here the errno of a failed start.
  void* shared = mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ResourceExhausted("no memory: ", std::strerror(errno));
  auto* error = static_cast<volatile int*>(shared);
  // Like fork, but this process continues only after the child has started the program or has ended. So no pipe is
  // needed. A pipe could get the number of a standard descriptor that is closed.
  const long process = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (process == 0) {
    Execute(program, command, setup);
    *error = errno;
    _exit(127);
  }
  const int start_error = process < 0 ? errno : *error;
  munmap(shared, sizeof(int));
  if (process < 0) return ResourceExhausted("no process: ", std::strerror(start_error));
  if (start_error == 0) return static_cast<int>(process);
  WaitForProcess(static_cast<int>(process));
  const std::string message = Cat(program, " cannot be executed: ", std::strerror(start_error));
  return start_error == ENOENT ? NotFound(message) : PermissionDenied(message);
}

ProcessEnd WaitForProcess(int process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFSIGNALED(status) ? ProcessEnd{0, WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
}

absl::StatusOr<Captured> RunAndCapture(const std::string& program, const std::vector<std::string>& command,
                                       const Environment& environment, bool with_errors) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return ResourceExhausted("no pipe: ", std::strerror(errno));
  // The number must be above the standard descriptors, because the child replaces those.
  const int output = fcntl(pipe[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(pipe[1]);
  const absl::StatusOr<int> child =
      StartProcess(program, command, {environment, output, with_errors ? output : -1, nullptr});
  close(output);
  Captured captured;
  char buffer[4096];
  for (ssize_t count = 0; child.ok() && (count = read(pipe[0], buffer, sizeof(buffer))) > 0;) {
    captured.text.append(buffer, static_cast<size_t>(count));
  }
  close(pipe[0]);
  if (!child.ok()) return child.status();
  captured.end = WaitForProcess(*child);
  return captured;
}

}  // namespace hbmprof::tool
