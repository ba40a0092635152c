#include "src/api/output/end_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/api/output/exit_writer.h"
#include "src/base/loaded_objects.h"
#include "src/base/protected_page.h"
#include "src/base/references.h"

namespace hbmprof::internal {
namespace {

// The C library's functions.
struct Real {
  void (*exit)(int) = nullptr;
  int (*kill)(pid_t, int) = nullptr;
  int (*raise)(int) = nullptr;
  int (*execv)(const char*, char* const*) = nullptr;
  int (*execve)(const char*, char* const*, char* const*) = nullptr;
  int (*execvp)(const char*, char* const*) = nullptr;
  int (*execvpe)(const char*, char* const*, char* const*) = nullptr;
};
Real real;

bool IsExecutable(const char* path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

// `file` is a path, or a name that is searched for in PATH.
bool MayBeExecutable(const char* file) { return std::strchr(file, '/') == nullptr || IsExecutable(file); }

// Writes the profile if `can_succeed`; then calls the C library's exec function.
template <typename... Arguments>
int Exec(bool can_succeed, int (*Real::*function)(Arguments...), Arguments... arguments) {
  if (real.*function == nullptr) FindRealEndCalls();  // called by a constructor that runs before that of this library
  if (real.*function == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (can_succeed) WriteBeforeExec();
  return (real.*function)(arguments...);
}

// Calls call(array) with the arguments of a function such as execl: `first`, `*rest` up to the null pointer, and the
// null pointer. `*rest` then stands behind that pointer.
template <typename Call>
int WithArguments(const char* first, va_list* rest, const Call& call) {
  va_list counted;
  va_copy(counted, *rest);
  size_t count = 1;
  if (first != nullptr) {
    do {
      ++count;
    } while (va_arg(counted, char*) != nullptr);
  }
  va_end(counted);
  auto** const arguments = static_cast<char**>(__builtin_alloca(count * sizeof(char*)));
  arguments[0] = const_cast<char*>(first);
  for (size_t i = 1; i < count; ++i) arguments[i] = va_arg(*rest, char*);
  return call(arguments);
}

}  // namespace

// The replacements have no C++ names, because the injected library exports them under the names of the C library.
extern "C" {

void hbmprof_internal_exit(int status) {
  WriteByExitWriter();
  if (real.exit != nullptr) real.exit(status);
  while (true) syscall(SYS_exit_group, status);
}

int hbmprof_internal_kill(pid_t process, int number) {
  if (process == getpid()) HandleOwnSignal(number);
  return real.kill != nullptr ? real.kill(process, number) : static_cast<int>(syscall(SYS_kill, process, number));
}

int hbmprof_internal_raise(int number) {
  HandleOwnSignal(number);
  if (real.raise != nullptr) return real.raise(number);
  return static_cast<int>(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number));
}

int hbmprof_internal_execve(const char* path, char* const* arguments, char* const* environment) {
  return Exec(IsExecutable(path), &Real::execve, path, arguments, environment);
}

int hbmprof_internal_execv(const char* path, char* const* arguments) {
  return Exec(IsExecutable(path), &Real::execv, path, arguments);
}

int hbmprof_internal_execvp(const char* file, char* const* arguments) {
  return Exec(MayBeExecutable(file), &Real::execvp, file, arguments);
}

int hbmprof_internal_execvpe(const char* file, char* const* arguments, char* const* environment) {
  return Exec(MayBeExecutable(file), &Real::execvpe, file, arguments, environment);
}

int hbmprof_internal_execl(const char* path, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  const int result =
      WithArguments(first, &rest, [path](char* const* arguments) { return hbmprof_internal_execv(path, arguments); });
  va_end(rest);
  return result;
}

int hbmprof_internal_execlp(const char* file, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  const int result =
      WithArguments(first, &rest, [file](char* const* arguments) { return hbmprof_internal_execvp(file, arguments); });
  va_end(rest);
  return result;
}

int hbmprof_internal_execle(const char* path, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  const int result = WithArguments(first, &rest, [path, &rest](char* const* arguments) {
    return hbmprof_internal_execve(path, arguments, va_arg(rest, char* const*));
  });
  va_end(rest);
  return result;
}
}  // extern "C"

namespace {

struct Replacement {
  const char* name;
  void* function;
};
const Replacement kReplacements[] = {
    {"_exit", reinterpret_cast<void*>(&hbmprof_internal_exit)},
    {"_Exit", reinterpret_cast<void*>(&hbmprof_internal_exit)},
    {"kill", reinterpret_cast<void*>(&hbmprof_internal_kill)},
    {"raise", reinterpret_cast<void*>(&hbmprof_internal_raise)},
    {"execl", reinterpret_cast<void*>(&hbmprof_internal_execl)},
    {"execle", reinterpret_cast<void*>(&hbmprof_internal_execle)},
    {"execlp", reinterpret_cast<void*>(&hbmprof_internal_execlp)},
    {"execv", reinterpret_cast<void*>(&hbmprof_internal_execv)},
    {"execve", reinterpret_cast<void*>(&hbmprof_internal_execve)},
    {"execvp", reinterpret_cast<void*>(&hbmprof_internal_execvp)},
    {"execvpe", reinterpret_cast<void*>(&hbmprof_internal_execvpe)},
};

void* ReplacementOf(const char* name) {
  if (std::strchr("_ekr", name[0]) == nullptr) return nullptr;  // most names
  for (const Replacement& replacement : kReplacements) {
    if (std::strcmp(name, replacement.name) == 0) return replacement.function;
  }
  return nullptr;
}

// Calls visit(object, slot, replacement) for each reference of a loaded object to one of the functions.
template <typename Visit>
void ForEachEndCall(const Visit& visit) {
  ForEachLoadedObject([&visit](const dl_phdr_info& object) {
    ForEachReference(object.dlpi_addr, DynamicSection(object), [&](const char* name, void** slot, bool) {
      if (void* const replacement = ReplacementOf(name)) visit(object, slot, replacement);
    });
  });
}

}  // namespace

void FindRealEndCalls() {
  const auto set = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_NEXT, name));
  };
  set(real.exit, "_exit");
  set(real.kill, "kill");
  set(real.raise, "raise");
  set(real.execv, "execv");
  set(real.execve, "execve");
  set(real.execvp, "execvp");
  set(real.execvpe, "execvpe");
}

void ReplaceEndCalls() {
  bool has_any = false;
  ForEachEndCall([&has_any](const dl_phdr_info&, void**, void*) { has_any = true; });
  // dlsym cannot be used in a static program. It must not be called in dl_iterate_phdr, because it takes a lock that
  // dlopen takes first.
  if (!has_any) return;
  FindRealEndCalls();
  ForEachEndCall(
      [](const dl_phdr_info& object, void** slot, void* replacement) { StoreProtected(object, slot, replacement); });
}

}  // namespace hbmprof::internal
