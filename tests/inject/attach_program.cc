// Loads the injected library late, attaches it to its own process and detaches it, with and without threads that hammer
// what can interfere. argv: LIBRARY CASE. Prints what it finds.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/inject/driver_calls.h"
#include "tests/inject/driver_program.h"
#include "tests/support/check.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
using driver_program::Allocate;

extern char** environ;

std::atomic<bool> lacks_threads{false};

extern "C" {
#if !defined(HBMPROF_IS_PROGRAM)  // else old_glibc.cc defines it, for a package: attach_test does not run there
// Fails if lacks_threads is set, as on a host without memory for another stack.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) noexcept {
  static auto* const real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return lacks_threads.load() ? EAGAIN : real(thread, attributes, run, argument);
}
#endif
[[gnu::noinline]] CUdeviceptr allocate_before(size_t bytes) { return Allocate(bytes); }
[[gnu::noinline]] CUdeviceptr allocate_after(size_t bytes) { return Allocate(bytes); }
// Calls functions with arguments on the stack.
[[gnu::noinline]] void call_with_stack_arguments(CUdeviceptr exported) {
  IpcMemHandle handle = {};
  CHECK_THAT(cuIpcGetMemHandle(&handle, exported) == kSuccess);
  CUdeviceptr opened = 0;
  CHECK_THAT(cuIpcOpenMemHandle_v2(&opened, handle, 1) == kSuccess && opened != 0);
  Handle library = nullptr;
  int option = 0;
  void* value = nullptr;
  CHECK_THAT(cuLibraryLoadData(&library, "code", &option, &value, 0, &option, &value, 0) == kSuccess);
}
}

namespace {

int (*attach)(const char*);
int (*detach)();
const char* options = nullptr;

void Load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  attach = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_attach"));
  detach = reinterpret_cast<int (*)()>(dlsym(library, "hbmprof_detach"));
  CHECK_THAT(attach != nullptr && detach != nullptr);
}

void Print(const char* text, int code) {
  std::printf("%s %d\n", text, code);
  std::fflush(stdout);
}

void WaitForLine() {
  char line[16];
  CHECK_THAT(std::fgets(line, sizeof(line), stdin) != nullptr);
}

void Free(CUdeviceptr ptr) { CHECK_THAT(cuMemFree_v2(ptr) == kSuccess); }

// Old memory, then a leak that goes on. After each line the test asks for the state.
void Leak() {
  driver_program::UseDevice(0);
  const CUdeviceptr old[] = {allocate_before(5 << 20), allocate_before(3 << 20)};
  Print("attach", attach(options));
  Print("again", attach(options));
  allocate_after(1 << 20);
  WaitForLine();
  Free(old[0]);
  allocate_after(1 << 20);
  Print("freed", 0);
  WaitForLine();
  Free(old[1]);
  Print("freed", 0);
  WaitForLine();
}

// The protection of each page of a file's mapping, such as "r-xp".
std::map<uintptr_t, std::string> Protections() {
  std::map<uintptr_t, std::string> pages;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char protection[8] = "";
    if (line.find('/') == line.npos) continue;
    CHECK_THAT(std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, protection) == 3);
    for (; begin < end; begin += 4096) pages[begin] = protection;
  }
  return pages;
}

// Attaching changes references of a library whose references are read-only, and the library's own table of symbols.
void KeepsProtections(const char* library) {
  CHECK_THAT(dlopen(library, RTLD_NOW) != nullptr);
  driver_program::UseDevice(0);
  const std::map<uintptr_t, std::string> before = Protections();
  const auto print_changes = [&before](const char* when, int code) {
    Print(when, code);
    int changes = 0;
    for (const auto& [page, protection] : Protections()) {
      const auto found = before.find(page);
      if (found == before.end() || found->second == protection) continue;
      std::fprintf(stderr, "%lx: %s, then %s\n", page, found->second.c_str(), protection.c_str());
      ++changes;
    }
    Print("changed", changes);
  };
  print_changes("attach", attach(options));
  print_changes("detach", detach());
  // The table of symbols is between the first page, which nobody changes, and the code.
  Dl_info info;
  CHECK_THAT(dladdr(reinterpret_cast<void*>(attach), &info) != 0);
  std::map<uintptr_t, std::string> pages = Protections();
  const auto first = reinterpret_cast<uintptr_t>(info.dli_fbase);
  for (uintptr_t page = first; page < reinterpret_cast<uintptr_t>(attach); page += 4096) {
    CHECK_THAT(pages[page] == pages[first] || pages[page] == "r-xp");
  }
}

// What a library can break if it is loaded late: each thread does one thing without end. Of many threads most wait.
class Hammer {
 public:
  explicit Hammer(size_t threads = std::size(kWorks)) {
    for (size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, i] {
        while (!ends_.load()) {
          kWorks[i % std::size(kWorks)]();
          if (i >= 8) usleep(300'000);
        }
      });
    }
  }
  ~Hammer() {
    ends_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  static void Malloc() {
    for (size_t i = 1; i < 200; ++i) std::free(std::malloc(i * 37));
  }
  static void Load() {
    if (void* const library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL)) dlclose(library);
  }
  static void Fork() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, nullptr, 0);
  }
  static void Spawn() {
    char path[] = "/bin/true";
    char* const arguments[] = {path, nullptr};
    pid_t child = 0;
    if (posix_spawn(&child, path, nullptr, nullptr, arguments, environ) == 0) waitpid(child, nullptr, 0);
  }
  static void Thread() {
    std::thread([] {}).join();
  }
  static void Objects() {
    dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 0; }, nullptr);
  }
  static void Throw() {
    try {
      throw std::runtime_error("hammer");
    } catch (const std::exception&) {
      // That is all.
    }
  }
  static constexpr void (*kWorks[])() = {&Malloc, &Load, &Fork, &Spawn, &Thread, &Objects, &Throw};

  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

// Locks of the program that its fork handlers take: registered before and after the library was loaded.
pthread_mutex_t program_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;

template <pthread_mutex_t* lock>
void HoldDuringForks() {
  const auto unlock = [] { pthread_mutex_unlock(lock); };
  pthread_atfork([] { pthread_mutex_lock(lock); }, unlock, unlock);
}

// Cycles of attach, one marked allocation, detach, and one allocation that is not recorded.
void Cycles(int cycles) {
  driver_program::UseDevice(0);
  HoldDuringForks<&late_lock>();
  const Hammer hammer;
  std::atomic<bool> ends{false};
  // Allocates under the locks that the fork handlers take.
  std::thread worker([&] {
    driver_program::UseDevice(1);
    while (!ends.load()) {
      for (pthread_mutex_t* const lock : {&program_lock, &late_lock}) {
        pthread_mutex_lock(lock);
        Free(Allocate(4096));
        pthread_mutex_unlock(lock);
      }
    }
  });
  for (int i = 0; i < cycles; ++i) {
    CHECK_THAT(attach(options) == 0);
    allocate_after(1 << 10);
    CHECK_THAT(detach() == 0);
    allocate_before(1 << 10);
  }
  ends.store(true);
  worker.join();
  CHECK_THAT(attach(options) == 0);
  for (int i = 0; i < 7; ++i) allocate_after(1 << 10);
  Print("cycles", cycles);
  WaitForLine();
}

// A second copy of the library attaches too.
void Copy(const char* path) {
  driver_program::UseDevice(0);
  const auto first_attach = attach;
  const auto first_detach = detach;
  Load(path);
  Print("first", first_attach(options));
  Print("second", attach(options));
  Print("first detach", first_detach());
  Print("second", attach(options));
  Print("first", first_attach(options));
}

// Two threads attach at the same time.
void Both() {
  driver_program::UseDevice(0);
  for (int i = 0; i < 50; ++i) {
    int codes[2] = {-1, -1};
    std::thread other([&] { codes[1] = attach(options); });
    codes[0] = attach(options);
    other.join();
    CHECK_THAT((codes[0] == 0) != (codes[1] == 0));
    CHECK_THAT(detach() == 0);
    CHECK_THAT(detach() == 9);
  }
  Print("both", 0);
}

// Waits for another process that attaches, beside threads that hammer. "a" and "b" allocate under different names.
void Serve(size_t threads) {
  driver_program::UseDevice(0);
  const Hammer hammer(threads);
  signal(SIGALRM, [](int) {});
  const itimerval every = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &every, nullptr);
  Print("ready", 0);
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) == 1;) {
    if (byte == '\n') continue;
    if (byte == 'a') allocate_after(1 << 10);
    if (byte == 'b') allocate_before(1 << 10);
    Print("allocated", 0);
  }
}

// Forked children of an attached process, whose other threads make pools.
void Child() {
  driver_program::UseDevice(0);
  CHECK_THAT(attach(options) == 0);
  {
    std::atomic<bool> ends{false};
    const auto make_pools = [&ends] {
      const hbmprof::internal::cuda_driver::MemPoolProps on_gpu0{
          1, 0, {hbmprof::internal::cuda_driver::kLocationDevice, 0}, nullptr, 0, {}};
      while (!ends.load()) {
        void* pool = nullptr;
        CHECK_THAT(cuMemPoolCreate(&pool, &on_gpu0) == kSuccess && cuMemPoolDestroy(pool) == kSuccess);
      }
    };
    std::thread makers[] = {std::thread(make_pools), std::thread(make_pools), std::thread(make_pools)};
    for (int i = 0; i < 100; ++i) {
      const pid_t destroyer = fork();
      if (destroyer == 0) {
        alarm(20);
        cuMemPoolDestroy(reinterpret_cast<Handle>(FAKE_CUDA_NO_POOL));
        _exit(0);
      }
      int status = -1;
      CHECK_THAT(waitpid(destroyer, &status, 0) == destroyer && status == 0);
    }
    ends.store(true);
    for (std::thread& maker : makers) maker.join();
  }
  const pid_t child = fork();
  if (child == 0) {
    Print("child attach", attach(options));
    Print("child detach", detach());
    _exit(0);
  }
  CHECK_THAT(waitpid(child, nullptr, 0) == child);
  Print("detach", detach());
}

// A child of vfork runs the functions in its parent's memory.
void VforkedChild() {
  driver_program::UseDevice(0);
  volatile int codes[2] = {-1, -1};
  const pid_t child = vfork();
  if (child == 0) {
    codes[0] = attach(options);
    codes[1] = detach();
    _exit(0);
  }
  CHECK_THAT(waitpid(child, nullptr, 0) == child);
  Print("child attach", codes[0]);
  Print("child detach", codes[1]);
  Print("attach", attach(options));
  Print("detach", detach());
}

// A thread that is to be cancelled attaches and detaches.
void Cancelled() {
  driver_program::UseDevice(0);
  int codes[2] = {-1, -1};
  std::thread([&codes] {
    pthread_cancel(pthread_self());
    codes[0] = attach(options);
    codes[1] = detach();
    pthread_testcancel();
    codes[0] = -2;
  }).join();
  Print("attach", codes[0]);
  Print("detach", codes[1]);
  Print("attach", attach(options));
}

// What cannot be taken over changes nothing.
void Options() {
  driver_program::UseDevice(0);
  Print("too long", attach((std::string(17'000, 'x') + "\n").c_str()));
  const std::string long_options = std::string(options) + "HBMPROF_X=" + std::string(15'000, 'x') + "\n";
  rlimit limit;
  CHECK_THAT(getrlimit(RLIMIT_AS, &limit) == 0);
  const rlimit none = {1, limit.rlim_max};
  CHECK_THAT(setrlimit(RLIMIT_AS, &none) == 0);
  // Small blocks are left.
  static void* volatile taken;
  while ((taken = std::malloc(8'000)) != nullptr) continue;
  const int code = attach(long_options.c_str());
  CHECK_THAT(setrlimit(RLIMIT_AS, &limit) == 0);
  Print("no memory", code);
  Print("attach", attach(options));
}

// The thread of the control channel cannot be started.
void NoThread() {
  driver_program::UseDevice(0);
  lacks_threads.store(true);
  Print("no thread", attach(options));
  lacks_threads.store(false);
  Print("attach", attach(options));
  WaitForLine();
}

// The device's memory grows, but not by functions of the driver.
void Silent() {
  driver_program::UseDevice(0);
  Print("attach", attach(options));
  WaitForLine();
  CHECK_THAT(fake_cuda_take(0, 32 << 20) == 0);
  Print("taken", 0);
  WaitForLine();
  Free(allocate_after(1 << 20));
  Print("called", 0);
  WaitForLine();
}

// A double of TensorFlow's library makes a wrong report after each of two attaches.
void Tensorflow(const char* path) {
  driver_program::UseDevice(0);
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK_THAT(library != nullptr);
  const auto report = reinterpret_cast<int (*)(const char*)>(dlsym(library, "double_allocate"));
  for (int i = 0; i < 2; ++i) {
    Print("attach", attach(options));
    report("free of another size");
    Print("reported", 0);
    WaitForLine();
    CHECK_THAT(detach() == 0);
  }
}

}  // namespace

int main(int, char** argv) {
  HoldDuringForks<&program_lock>();
  options = std::getenv("ATTACH_OPTIONS");
  const std::string name = argv[2];
  if (name != "serve") Load(argv[1]);
  if (name == "leak") Leak();
  if (name == "stack_arguments") {
    driver_program::UseDevice(0);
    CHECK_THAT(attach(options) == 0);
    call_with_stack_arguments(allocate_after(1 << 20));
    Print("in order", 0);
  }
  if (name == "cycles") Cycles(std::atoi(argv[3]));
  if (name == "both") Both();
  if (name == "copy") Copy(argv[3]);
  if (name == "serve") Serve(static_cast<size_t>(std::atoi(argv[3])));
  if (name == "child") Child();
  if (name == "vfork") VforkedChild();
  if (name == "cancelled") Cancelled();
  if (name == "options") Options();
  if (name == "no_thread") NoThread();
  if (name == "silent") Silent();
  if (name == "tensorflow") Tensorflow(argv[3]);
  if (name == "protections") KeepsProtections(argv[3]);
  return 0;
}
