// Defines functions that are new in later versions of glibc, for the portable command and the portable libraries that
// are loaded into unchanged programs (HBMPROF_PORTABLE). With this file they run with glibc 2.17 and later, whichever
// glibc they are built with.
//
// A shared library or program needs at least the version of glibc in the newest symbol version that it uses. Most of
// the new versions are old functions: glibc 2.34 moved them from libpthread.so.0 and libdl.so.2 to libc.so.6, and glibc
// 2.33 made stat an exported function. This file defines each of them as a hidden function. The linker uses it instead
// of the function of the C library, also for the static libraries that are linked in. The hidden function calls a
// version of the function that glibc 2.17 and every later glibc have. hbmprof_link_old_glibc
// (cmake/hbmprof_injected.cmake) also makes the result need libpthread.so.0 and libdl.so.2. They are parts of every
// glibc, and empty since 2.34.
//
// If the glibc of the process has _dl_find_object (2.35), that function is called. Otherwise the list of loaded objects
// is searched.
//
// InjectTest.NeedsNoNewerLibcThan217 checks the result.
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "src/base/compat/first_glibc.h"
#include "src/base/fork.h"

#if defined(__x86_64__)
#define HBMPROF_GLIBC_2_3_3 "GLIBC_2.3.3"
#define HBMPROF_GLIBC_2_3_2 "GLIBC_2.3.2"
#else
#define HBMPROF_GLIBC_2_3_3 HBMPROF_FIRST_GLIBC
#define HBMPROF_GLIBC_2_3_2 HBMPROF_FIRST_GLIBC
#endif

// GCC warns that parameters of these functions are uninitialized if the C library declares them with the attribute
// access(none).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define HBMPROF_HIDDEN [[gnu::visibility("hidden")]]

// Defines the hidden function `name`, which calls the C library's function of that version.
#define OLD_FUNCTION(version, result, name, parameters, arguments) \
  extern "C" result hbmprof_old_##name parameters;                 \
  asm(".symver hbmprof_old_" #name "," #name "@" version);         \
  extern "C" HBMPROF_HIDDEN result name parameters { return hbmprof_old_##name arguments; }

// Moved from libpthread.so.0.
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_create,
             (pthread_t * thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
             (thread, attributes, run, argument))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_join, (pthread_t thread, void** result), (thread, result))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_detach, (pthread_t thread), (thread))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_attr_setstacksize, (pthread_attr_t * attributes, size_t bytes),
             (attributes, bytes))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old), (how, set, old))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_once, (pthread_once_t * once, void (*run)()), (once, run))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)),
             (key, destroy))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, __pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)),
             (key, destroy))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_key_delete, (pthread_key_t key), (key))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, void*, pthread_getspecific, (pthread_key_t key), (key))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_getcpuclockid, (pthread_t thread, clockid_t* clock), (thread, clock))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, sem_init, (sem_t * semaphore, int shared, unsigned value),
             (semaphore, shared, value))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, sem_post, (sem_t * semaphore), (semaphore))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, sem_wait, (sem_t * semaphore), (semaphore))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, sem_timedwait, (sem_t * semaphore, const timespec* until), (semaphore, until))

OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_init,
             (pthread_rwlock_t * lock, const pthread_rwlockattr_t* attributes), (lock, attributes))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_destroy, (pthread_rwlock_t * lock), (lock))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock), (lock))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))
OLD_FUNCTION(HBMPROF_GLIBC_2_3_3, int, pthread_condattr_setclock, (pthread_condattr_t * attributes, clockid_t clock),
             (attributes, clock))
OLD_FUNCTION(HBMPROF_GLIBC_2_3_2, int, pthread_cond_timedwait,
             (pthread_cond_t * condition, pthread_mutex_t* mutex, const timespec* until), (condition, mutex, until))

// Since 2.29 they have a second version, which does not set errno.
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, double, exp, (double x), (x))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, double, exp2, (double x), (x))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, double, log, (double x), (x))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, double, log2, (double x), (x))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, double, pow, (double x, double y), (x, y))

// Since 2.27 it has a second version, which also finds links to nothing.
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, glob,
             (const char* pattern, int flags, int (*on_error)(const char*, int), glob_t* paths),
             (pattern, flags, on_error, paths))

// Moved from libdl.so.2.
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, dlclose, (void* library), (library))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, char*, dlerror, (), ())
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, int, dladdr, (const void* address, Dl_info* info), (address, info))
OLD_FUNCTION(HBMPROF_GLIBC_2_3_3, int, dladdr1, (const void* address, Dl_info* info, void** extra, int flags),
             (address, info, extra, flags))
OLD_FUNCTION(HBMPROF_GLIBC_2_3_3, int, dlinfo, (void* library, int request, void* result), (library, request, result))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, void*, dlvsym, (void* library, const char* name, const char* version),
             (library, name, version))
#if !defined(HBMPROF_EXPORTS_DLSYM)  // otherwise dynamic_linker.cc defines them
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, void*, dlopen, (const char* file, int flags), (file, flags))
OLD_FUNCTION(HBMPROF_FIRST_GLIBC, void*, dlsym, (void* library, const char* name), (library, name))
#endif

// The functions of the process's C library; null if it does not have them, and until the constructor below has run.
using SemaphoreWait = int(sem_t* semaphore, clockid_t clock, const timespec* until);
using ConditionWait = int(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until);
static std::atomic<SemaphoreWait*> libc_sem_clockwait{nullptr};
static std::atomic<ConditionWait*> libc_cond_clockwait{nullptr};

// Returns the value that CLOCK_REALTIME has when `clock` reaches `until`.
static timespec ToRealTime(clockid_t clock, const timespec& until) {
  constexpr int64_t kNanos = 1'000'000'000;
  timespec now;
  timespec real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const int64_t wait = (until.tv_sec - now.tv_sec) * kNanos + until.tv_nsec - now.tv_nsec;
  const int64_t end = real.tv_sec * kNanos + real.tv_nsec + std::max<int64_t>(wait, 0);
  return {end / kNanos, end % kNanos};
}

extern "C" {

// System calls for which older C libraries have no function. The kernel and the C library have the same struct stat.

HBMPROF_HIDDEN int fstatat(int directory, const char* path, struct stat* result, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, directory, path, result, flags));
}
HBMPROF_HIDDEN int stat(const char* path, struct stat* result) { return fstatat(AT_FDCWD, path, result, 0); }
HBMPROF_HIDDEN int lstat(const char* path, struct stat* result) {
  return fstatat(AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}
HBMPROF_HIDDEN int fstat(int descriptor, struct stat* result) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
HBMPROF_HIDDEN int fstat64(int descriptor, struct stat64* result) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
HBMPROF_HIDDEN int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) {
  return static_cast<int>(syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

HBMPROF_HIDDEN int getentropy(void* bytes, size_t count) {
  return syscall(SYS_getrandom, bytes, count, 0) == static_cast<long>(count) ? 0 : -1;
}
// Used by std::random_device.
HBMPROF_HIDDEN uint32_t arc4random() {
  uint32_t number = 0;
  return getentropy(&number, sizeof(number)) == 0 ? number : static_cast<uint32_t>(time(nullptr));
}

// glibc has these functions since 2.30. With an older glibc, they convert the time to CLOCK_REALTIME and wait until
// then. If the system's time is set during the wait, the wait ends too early or too late.
HBMPROF_HIDDEN int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* until) {
  SemaphoreWait* const function = libc_sem_clockwait.load(std::memory_order_acquire);
  if (function != nullptr) return function(semaphore, clock, until);
  const timespec real_until = ToRealTime(clock, *until);
  return sem_timedwait(semaphore, &real_until);
}
HBMPROF_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                          const timespec* until) {
  ConditionWait* const function = libc_cond_clockwait.load(std::memory_order_acquire);
  if (function != nullptr) return function(condition, mutex, clock, until);
  const timespec real_until = ToRealTime(clock, *until);
  return pthread_cond_timedwait(condition, mutex, &real_until);
}

// glibc has it since 2.32. libstdc++ and libgcc avoid atomic operations if it is not 0. 0 means that the process may
// have several threads.
HBMPROF_HIDDEN char __libc_single_threaded = 0;
}

namespace {

using FindObject = int(void* address, dl_find_object* result);

std::atomic<FindObject*> libc_find_object{nullptr};

template <typename Function>
void FindInLibc(const char* name, std::atomic<Function*>* function) {
  function->store(reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name)), std::memory_order_release);
}

[[gnu::constructor]] void FindLibcFunctions() {
  FindInLibc("_dl_find_object", &libc_find_object);
  FindInLibc("sem_clockwait", &libc_sem_clockwait);
  FindInLibc("pthread_cond_clockwait", &libc_cond_clockwait);
}

struct Search {
  uintptr_t address;
  dl_find_object* result;
};

// If `object` contains the address, stores it and returns 1. The caller holds the lock of dl_iterate_phdr.
int FindInObject(dl_phdr_info* object, size_t /*size*/, void* argument) {
  const auto& search = *static_cast<Search*>(argument);
  constexpr uintptr_t kPageMask = 4095;
  uintptr_t start = UINTPTR_MAX;
  uintptr_t limit = 0;
  uintptr_t eh_frame_hdr = 0;
  bool contains = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t at = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) eh_frame_hdr = at;
    if (segment.p_type != PT_LOAD) continue;
    start = std::min(start, at & ~kPageMask);
    limit = std::max(limit, at + segment.p_memsz);
    contains = contains || search.address - at < segment.p_memsz;
  }
  if (!contains) return 0;
  link_map* map = _r_debug.r_map;
  while (map != nullptr && (map->l_addr != object->dlpi_addr || std::strcmp(map->l_name, object->dlpi_name) != 0)) {
    map = map->l_next;
  }
  if (map == nullptr) return 1;  // an object of another name space (dlmopen)
  *search.result = {};
  search.result->dlfo_map_start = reinterpret_cast<void*>(start);
  search.result->dlfo_map_end = reinterpret_cast<void*>(limit);
  search.result->dlfo_link_map = map;
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(eh_frame_hdr);
  return 1;
}

}  // namespace

// Since 2.35. Without it, the list of the dynamic linker is searched under its lock. The dynamic linker holds the lock
// only while it changes the list, and the thread that holds it may take it again. In a process that is off (fork.h),
// the lock may be held for ever, so no object is found there.
extern "C" HBMPROF_HIDDEN int _dl_find_object(void* address, dl_find_object* result) {
  FindObject* const function = libc_find_object.load(std::memory_order_acquire);
  if (function != nullptr) return function(address, result);
  if (hbmprof::internal::IsOff()) return -1;
  result->dlfo_link_map = nullptr;
  Search search = {reinterpret_cast<uintptr_t>(address), result};
  dl_iterate_phdr(&FindInObject, &search);
  return result->dlfo_link_map != nullptr ? 0 : -1;
}

#if defined(HBMPROF_IS_PROGRAM)
// Since 2.34 the C library calls a program's constructors itself. Older ones call a function that the start code
// (crt1.o) passes to __libc_start_main. The start code comes from the C library of the build, and that of 2.34 and
// later passes no such function. So this file passes one.

extern "C" {
using Constructor = void(int argc, char** argv, char** environment);
using Main = int(int argc, char** argv, char** environment);

// The linker defines them, and the start code.
HBMPROF_HIDDEN extern Constructor* __init_array_start[];
HBMPROF_HIDDEN extern Constructor* __init_array_end[];
void _init();

static void CallConstructors(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** one = __init_array_start; one != __init_array_end; ++one) (*one)(argc, argv, environment);
}

int hbmprof_old_start_main(Main* main, int argc, char** argv, Constructor* init, void (*fini)(), void (*linker_fini)(),
                           void* stack_end);
asm(".symver hbmprof_old_start_main,__libc_start_main@" HBMPROF_FIRST_GLIBC);
HBMPROF_HIDDEN int __libc_start_main(Main* main, int argc, char** argv, Constructor* /*init*/, void (*fini)(),
                                     void (*linker_fini)(), void* stack_end) {
  return hbmprof_old_start_main(main, argc, argv, &CallConstructors, fini, linker_fini, stack_end);
}
}
#endif
