// Allocates 1 MiB of device memory in HoldMemory, prints "held", and ends in the way that argv[1] names; each is a case
// of ends_test. argv[2] is the path of a library for the case "in_library". The cases "first_process_..." run in a
// child that is the first process of a process id name space; the exit code is 77 if that is not permitted. With
// "lines" it does the same for each line of its standard input (live_test). With LINKS_HBMPROF the memory is recorded
// by the linked library; otherwise it is allocated from the driver.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(LINKS_HBMPROF)
#include "hbmprof/c_api.h"
#include "hbmprof/profiler.h"
#else
#include "tests/inject/driver_calls.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
#endif

std::atomic<bool> malloc_hangs{false};
thread_local bool malloc_hangs_here = false;  // in this thread, as after a signal handler has interrupted malloc

// The number of this thread's next call of malloc that calls in_malloc; 0: none.
thread_local int call_in_malloc = 0;
void (*in_malloc)() = [] { kill(getpid(), SIGTERM); };

// Behaves as if another thread held malloc's lock forever.
extern "C" void* __libc_malloc(size_t bytes);  // NOLINT: glibc's name
extern "C" void* malloc(size_t bytes) {
  if (call_in_malloc > 0 && --call_in_malloc == 0) in_malloc();
  while (malloc_hangs.load() || malloc_hangs_here) usleep(1000);
  return __libc_malloc(bytes);
}

// The library calls fsync in the middle of the write of a profile. The first such call then also calls this function.
std::atomic<void (*)()> in_write{nullptr};
extern "C" int fsync(int fd) {
  if (void (*const call)() = in_write.exchange(nullptr)) call();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

// The library accepts connections with this function. Prints a line if it gets a standard descriptor.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  const auto fd = static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
  constexpr char kLine[] = "accepted a standard descriptor\n";
  if (fd >= 0 && fd <= STDERR_FILENO) syscall(SYS_write, STDOUT_FILENO, kLine, sizeof(kLine) - 1);
  return fd;
}

// Behaves as if the disk with the recording did not answer.
std::atomic<bool> recording_hangs{false};
extern "C" ssize_t write(int fd, const void* bytes, size_t count) {
  struct stat recording;
  struct stat written;
  const bool hangs = recording_hangs.load() && stat(std::getenv("HBMPROF_RECORD"), &recording) == 0 &&
                     fstat(fd, &written) == 0 && written.st_ino == recording.st_ino;
  while (hangs) sleep(1);
  return syscall(SYS_write, fd, bytes, count);
}

namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}
#define REQUIRE(condition) Require(condition, #condition)

#if defined(LINKS_HBMPROF)
[[gnu::noinline]] void HoldMemory(size_t bytes) {
  static uint64_t next = 0;
  hbmprof_record_alloc(hbmprof_handle(32, ++next), bytes, 0);
  asm volatile("" ::: "memory");
}
// Creates the profiler, but records no memory.
void HoldNothing() { hbmprof_set_enabled(1); }
void UseDevice() {}
// Calls malloc while it holds a lock, which the thread that writes the profile needs.
void HoldALock() { hbmprof_devices(nullptr, 0); }
#else
void UseDevice() {
  Handle context = nullptr;
  REQUIRE(cuInit(0) == kSuccess);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == kSuccess);
  REQUIRE(cuCtxSetCurrent(context) == kSuccess);
}

[[gnu::noinline]] void HoldMemory(size_t bytes) {
  UseDevice();
  CUdeviceptr ptr = 0;
  REQUIRE(cuMemAlloc_v2(&ptr, bytes) == kSuccess);
  asm volatile("" ::: "memory");
}

void HoldNothing() { REQUIRE(cuMemFree_v2(0) != 1000); }
// Calls malloc while the driver holds its lock. The memory is freed, if this function returns.
void HoldALock() {
  CUdeviceptr ptr = 0;
  REQUIRE(cuMemAlloc_v2(&ptr, 4096) == kSuccess && cuMemFree_v2(ptr) == kSuccess);
}

// Requests more than the device has, in each way.
void RequestTooMuch() {
  CUdeviceptr ptr = 0;
  size_t pitch = 0;
  void* host = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  const MemAllocationProp properties{1, 0, {kLocationDevice, 1}};
  const size_t bytes = size_t{3} << 30;
  REQUIRE(cuMemAlloc_v2(&ptr, bytes) == 2);
  REQUIRE(cuMemAllocPitch_v2(&ptr, &pitch, bytes, 2, 4) == 2);
  REQUIRE(cuMemAllocAsync(&ptr, bytes, nullptr) == 2);
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == 2);
  REQUIRE(cuMemHostAlloc(&host, bytes, 0) == 2 || host != nullptr);
}
#endif

void OwnHandler(int) { _exit(7); }

void EndAgain(int number) {
  signal(number, SIG_DFL);
  raise(number);
}

// In a thread that has a pending request of pthread_cancel, which takes effect after HoldMemory.
void HoldMemoryInCancelledThread() {
  static bool holds = false;
  const auto hold = [](void*) -> void* {
    pthread_cancel(pthread_self());
    HoldMemory(1 << 20);
    holds = true;
    pthread_testcancel();
    return nullptr;
  };
  pthread_t thread;
  void* result = nullptr;
  REQUIRE(pthread_create(&thread, nullptr, hold, nullptr) == 0);
  REQUIRE(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && holds);
}

// Holds memory in a function with a long name. It takes much stack to demangle such names.
using Table = std::map<std::string, std::vector<std::pair<std::function<void(std::string)>, std::vector<std::string>>>>;
template <typename T>
[[gnu::noinline]] void HoldMemoryIn(const T&) {
  HoldMemory(1 << 20);
  asm volatile("" ::: "memory");
}
void HoldMemoryInLongName() { HoldMemoryIn(std::map<int, std::pair<Table, std::vector<std::pair<Table, Table>>>>()); }

// Calls run(nullptr) in a thread with a stack of 32 KiB, and waits until the thread ends.
void OnSmallStack(void* (*run)(void*)) {
  pthread_attr_t attributes;
  pthread_t thread;
  REQUIRE(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 32 << 10) == 0);
  REQUIRE(pthread_create(&thread, &attributes, run, nullptr) == 0);
  REQUIRE(pthread_join(thread, nullptr) == 0);
}

void SendAndWait(int number) {
  kill(getpid(), number);
  sleep(60);
}

// Forks a child that allocates its own memory and ends by _exit, as a worker of Python's multiprocessing does.
void ForkedWorker() {
  const pid_t child = fork();
  if (child == 0) {
    HoldMemory(1 << 20);
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

// The same, but a signal ends the child, as in a pool of Python's multiprocessing.
void TerminatedWorker() {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    HoldMemory(1 << 20);
    REQUIRE(write(ready[1], "", 1) == 1);
    sleep(60);
  }
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  kill(child, SIGTERM);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

// Forks a child whose own signal handler interrupts malloc and calls _exit, as a worker of PyTorch's DataLoader does.
// If `holds` is true, the child has memory of its own.
void OwnHandlerInWorker(bool holds) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, &OwnHandler);
    if (holds) HoldMemory(1 << 20);
    malloc_hangs_here = true;
    SendAndWait(SIGTERM);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// Cases with a child that holds memory before its parent does. Otherwise the child is off. Returns whether `how` is
// one.
bool ForkWorkers(const std::string& how) {
  if (how == "worker") {
    ForkedWorker();
  } else if (how == "term_in_worker") {
    TerminatedWorker();
  } else if (how == "own_handler_in_holder") {
    OwnHandlerInWorker(true);
  } else {
    return false;
  }
  HoldMemory(1 << 20);
  return true;
}

// A child that shares its parent's memory until it ends.
[[gnu::noinline]] void Vforked() {
  const pid_t child = vfork();
  if (child == 0) _exit(9);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 9);
}

[[gnu::noinline]] int Overflow(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : Overflow(depth + 1) + frame[0];
}

// Replaces the program by another one.
void CallExec(const std::string& how) {
  char name[] = "echo";
  char word[] = "replaced";
  char* const arguments[] = {name, word, nullptr};
  if (how == "execl") execl("/bin/echo", name, word, nullptr);
  if (how == "execle") execle("/bin/echo", name, word, nullptr, environ);
  if (how == "execlp") execlp(name, name, word, nullptr);
  if (how == "execv") execv("/bin/echo", arguments);
  if (how == "execve") execve("/bin/echo", arguments, environ);
  if (how == "execvp") execvp(name, arguments);
  if (how == "execvpe") execvpe(name, arguments, environ);
  if (how == "exec_in_thread") std::thread([&] { execv("/bin/echo", arguments); }).join();
  if (how == "exec_in_child") {
    const pid_t child = fork();
    if (child == 0) execv("/bin/echo", arguments);
    REQUIRE(waitpid(child, nullptr, 0) == child);
  }
  if (how == "exec_fails") {
    REQUIRE(execv("/nonexistent", arguments) == -1 && errno == ENOENT);
    REQUIRE(execvp("nonexistent", arguments) == -1 && errno == ENOENT);
    REQUIRE(execv("/bin", arguments) == -1 && errno == EACCES);
    const char* volatile no_path = nullptr;  // the compiler does not know that it is null
    REQUIRE(execve(no_path, arguments, environ) == -1 && errno == EFAULT);
  }
}

// Two ends at once: the second one comes while the profile of the first one is written.
std::atomic<bool> is_writing{false};

void StayInWrite() {
  is_writing.store(true);
  usleep(200'000);
}

// This process returns from main, and a signal comes to the thread that writes.
void TermInWrite() {
  in_write.store([] { kill(getpid(), SIGTERM); });
}

// This process returns from main, and a signal comes to another thread.
void TermInThreadInWrite() {
  in_write.store(&StayInWrite);
  std::thread([] {
    while (!is_writing.load()) usleep(1000);
    raise(SIGTERM);
  }).detach();
}

// A thread calls _exit, and this process returns from main.
void ReturnInWrite() {
  in_write.store(&StayInWrite);
  std::thread([] { _exit(0); }).detach();
  while (!is_writing.load()) usleep(1000);
}

// This process returns from main, and a thread calls exit. There are so many exit handlers that the C library frees
// parts of their list. The first one keeps the second thread in exit until the write has ended.
std::atomic<bool> is_in_exit{false};
std::atomic<bool> is_written{false};

void AddExitHandlers() {
  std::atexit([] {
    for (int i = 0; i < 500 && !is_written.load(); ++i) usleep(1000);
    usleep(50'000);
  });
  for (int i = 0; i < 100; ++i) std::atexit([] {});
}

void ExitInWrite() {
  in_write.store([] {
    std::atexit([] { is_in_exit.store(true); });
    std::thread([] { std::exit(0); }).detach();
    while (!is_in_exit.load()) usleep(1000);
    usleep(100'000);
    is_written.store(true);
  });
}

// The disk with the profile does not answer.
void HangInWrite() {
  in_write.store([] {
    while (true) pause();
  });
}

// As on a loaded machine, the write takes long and goes on.
void WriteSlowly() {
  in_write.store([] {
    for (const time_t start = time(nullptr); time(nullptr) < start + 8;) continue;
  });
}

// Waits until the end of this process has begun: the library then removes its socket.
void AwaitEnd() {
  const char* const folder = std::getenv("HBMPROF_SOCKET_DIR");
  if (folder == nullptr) return;
  const std::string socket = std::string(folder) + "/hbmprof." + std::to_string(getpid()) + ".sock";
  while (access(socket.c_str(), F_OK) == 0) usleep(1000);
}

pthread_t main_thread;

// A signal comes to the main thread. A second one comes to a thread that holds a lock that the thread that writes
// needs: one of the library, or of the driver.
void SecondTerm() {
  main_thread = pthread_self();
  in_malloc = [] {
    pthread_kill(main_thread, SIGTERM);
    AwaitEnd();
    raise(SIGTERM);
  };
  std::thread([] {
    UseDevice();
    call_in_malloc = 2;
    HoldALock();
  }).detach();
  sleep(60);
}

#if defined(LINKS_HBMPROF)
// A signal comes to a thread in a probe that holds a lock, which the probe also takes in the thread that writes.
void TermInProbe() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceId device = profiler.Device("locked");
  profiler.SetDeviceProbe(device, [] {
    static std::mutex mutex;
    static bool is_first = true;
    const std::lock_guard<std::mutex> hold(mutex);
    if (std::exchange(is_first, false)) raise(SIGTERM);
    return hbmprof::DeviceProbe{};
  });
  profiler.Stats(device);
  sleep(60);
}

void HangInProbe() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.SetDeviceProbe(profiler.Device("hangs"), []() -> hbmprof::DeviceProbe {
    while (true) pause();
  });
}
#else
// A thread is stuck inside the driver, whose lock it holds.
void HangInProbe() {
  static std::atomic<bool> is_stuck{false};
  in_malloc = [] {
    is_stuck.store(true);
    malloc_hangs_here = true;
  };
  std::thread([] {
    UseDevice();
    call_in_malloc = 1;
    HoldALock();
  }).detach();
  while (!is_stuck.load()) usleep(1000);
}
#endif

void* library = nullptr;  // for the case "in_library"

void EndInLibrary() {
  auto* const end = reinterpret_cast<void (*)()>(dlsym(library, "end_in_library"));
  REQUIRE(end != nullptr);
  end();
}

int terminal = -1;

// Continues in a child with a terminal of its own; `terminal` is the end where a user types. This process waits for the
// child and ends by the same signal.
void ContinueOnATerminal() {
  terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(setsid() == getpid() && open(ptsname(terminal), O_RDWR) >= 0);
    return;
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  raise(WTERMSIG(status));
}

int parent = -1;  // a pipe to the parent of the first process, which then kills this process

// Continues in a child that is the first process of a process id name space. This process waits for the child and ends
// by the same signal, or with the same exit code.
void ContinueAsFirstProcess() {
  int to_parent[2];
  REQUIRE(pipe(to_parent) == 0);
  if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) std::_Exit(77);
  const pid_t child = fork();
  if (child < 0) std::_Exit(77);
  if (child == 0) {
    REQUIRE(getpid() == 1);
    close(to_parent[0]);
    parent = to_parent[1];
    return;
  }
  close(to_parent[1]);
  char byte;
  if (read(to_parent[0], &byte, 1) == 1) kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) std::_Exit(WEXITSTATUS(status));
  signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
}

void GetKilled() {
  REQUIRE(write(parent, "", 1) == 1);
  sleep(60);
}

void TypeAndWait(char key) {
  REQUIRE(write(terminal, &key, 1) == 1);
  sleep(10);
}

// The kernel ignores a sent signal that the first process does not handle, so each of these cases continues after it.
void EndFirstProcessAs(const std::string& how) {
  if (how == "first_process_killed" || how == "first_process_returns") {
    for (const int number : {SIGTERM, SIGINT, SIGABRT, SIGSEGV}) kill(getpid(), number);
    HoldMemory(1 << 20);
    kill(getpid(), SIGTERM);
    if (how == "first_process_killed") GetKilled();
    HoldMemory(1 << 20);
  }
  if (how == "first_process_aborts") std::abort();
}

#if defined(LINKS_HBMPROF)
std::atomic<bool> is_handled{false};

// SIGTERM interrupts a snapshot, which delays it, and the program sets its own handler meanwhile. SIGINT interrupts a
// snapshot long afterwards.
void TwoDelayedSignals(int call) {
  in_malloc = [] {
    kill(getpid(), SIGTERM);
    signal(SIGTERM, [](int) { is_handled.store(true); });
  };
  call_in_malloc = call;
  hbmprof_devices(nullptr, 0);
  while (!is_handled.load()) usleep(1000);
  // A signal is delayed for one second at most, and a delay that began two seconds ago does not count.
  const time_t begin = time(nullptr);
  while (time(nullptr) < begin + 4) usleep(10'000);
  in_malloc = [] { kill(getpid(), SIGINT); };
  call_in_malloc = call;
  hbmprof_devices(nullptr, 0);
  sleep(60);
}
#endif

void EndAs(const std::string& how) {
  if (how == "interrupt_key") TypeAndWait('\003');
  if (how == "quit_key") TypeAndWait('\034');
  if (how == "term" || how == "idle_term") SendAndWait(SIGTERM);
  if (how == "int") SendAndWait(SIGINT);
  if (how == "hup") SendAndWait(SIGHUP);
  if (how == "quit") SendAndWait(SIGQUIT);
  if (how == "term_in_thread") std::thread([] { SendAndWait(SIGTERM); }).join();
  if (how == "term_in_malloc") {
    malloc_hangs.store(true);
    SendAndWait(SIGTERM);
  }
  if (how == "term_while_recording_hangs") {
    recording_hangs.store(true);
    SendAndWait(SIGTERM);
  }
  if (how.rfind("term_in_lock_", 0) == 0) {
    call_in_malloc = how.back() - '0';
    HoldALock();
    sleep(60);
  }
#if defined(LINKS_HBMPROF)
  if (how.rfind("two_delayed_signals_", 0) == 0) TwoDelayedSignals(how.back() - '0');
#endif
  if (how == "abort") std::abort();
  if (how == "terminate") std::terminate();
  if (how == "segv") *static_cast<volatile int*>(nullptr) = 1;
  if (how == "fpe") raise(SIGFPE);
  if (how == "overflow") std::exit(Overflow(0));
  if (how == "_exit") _exit(5);
  if (how == "exit_on_small_stack") OnSmallStack([](void*) -> void* { std::exit(3); });
  if (how == "_Exit") _Exit(6);
  if (how == "quick_exit") std::quick_exit(4);
  if (how == "term_in_write") TermInWrite();
  if (how == "term_in_thread_in_write") TermInThreadInWrite();
  if (how == "return_in_write") ReturnInWrite();
  if (how == "exit_in_write") ExitInWrite();
  if (how == "return_while_disk_hangs") HangInWrite();
  if (how == "return_while_write_is_slow") WriteSlowly();
  if (how == "return_while_recording_hangs") recording_hangs.store(true);
  if (how == "second_term") SecondTerm();
#if defined(LINKS_HBMPROF)
  if (how == "term_in_probe") TermInProbe();
#endif
  if (how.rfind("stuck_", 0) == 0) {
    HangInProbe();
    if (how == "stuck_term") SendAndWait(SIGTERM);
    if (how == "stuck_end") _exit(0);
  }
  CallExec(how);
  if (how == "in_library") EndInLibrary();
  if (how == "own_handler") {
    signal(SIGTERM, &OwnHandler);
    SendAndWait(SIGTERM);
  }
  if (how == "ignored") kill(getpid(), SIGHUP);  // the test starts this with SIGHUP ignored
  if (how.rfind("default_again", 0) == 0) {
    signal(SIGTERM, SIG_DFL);
    if (how == "default_again_raise") raise(SIGTERM);
    if (how == "default_again") SendAndWait(SIGTERM);
    if (how == "default_again_in_handler") {
      signal(SIGTERM, &EndAgain);
      raise(SIGTERM);
      sleep(60);
    }
    // From outside.
    const pid_t parent = getpid();
    if (fork() == 0) {
      execlp("sh", "sh", "-c", ("kill " + std::to_string(parent)).c_str(), nullptr);
      _exit(1);
    }
    sleep(60);
  }
  if (how.rfind("first_process_", 0) == 0) EndFirstProcessAs(how);
  if (how == "sleep") sleep(60);
  if (how == "lines") {
    for (int byte; (byte = std::getchar()) != EOF;) {
      if (byte != '\n') continue;
      HoldMemory(1 << 20);
      std::puts("held");
      std::fflush(stdout);
    }
  }
#if !defined(LINKS_HBMPROF)
  if (how == "too_much") RequestTooMuch();
  if (how == "too_much_on_small_stack") {
    OnSmallStack([](void*) -> void* {
      UseDevice();
      RequestTooMuch();
      return nullptr;
    });
  }
#endif
  if (how == "idle_child") {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    REQUIRE(waitpid(child, nullptr, 0) == child);
  }
  if (how == "own_handler_in_worker") OwnHandlerInWorker(false);
  if (how == "vfork") Vforked();
  if (how == "term_in_child") {
    const pid_t child = fork();
    if (child == 0) SendAndWait(SIGTERM);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  }
}

}  // namespace

// ifunc_library.c calls it in the middle of its load.
extern "C" [[gnu::visibility("default")]] void (*hook_while_loading)();
void (*hook_while_loading)() = &HoldNothing;

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "ignored") signal(SIGHUP, SIG_IGN);
  if (how == "exit_in_write") AddExitHandlers();
  if (how == "interrupt_key" || how == "quit_key") ContinueOnATerminal();
  if (how.rfind("first_process_", 0) == 0) ContinueAsFirstProcess();
  if (how == "first_process_killed") {
    HoldNothing();
    kill(getpid(), SIGHUP);  // there is nothing to write yet
  }
  if (how == "in_library") {
    library = dlopen(argv[2], RTLD_NOW);
    REQUIRE(library != nullptr);
  }
  if (how == "idle_term") {
    HoldNothing();
  } else if (how == "cancelled_thread") {
    HoldMemoryInCancelledThread();
  } else if (how == "exit_on_small_stack" || how == "too_much_on_small_stack") {
    HoldMemoryInLongName();
  } else if (!ForkWorkers(how)) {
    HoldMemory(1 << 20);
  }
  std::puts("held");
  std::fflush(stdout);
  EndAs(how);
  std::puts("done");
  return 0;
}
