// A process that is attached to. "wait KIND": one thread that waits in a function of the C library, and says whether
// the wait and its registers were changed. "hammer N": N threads that use what attaching uses too. "spin": no thread
// that waits. "exec": after a line of input it starts "wait read" in its place. "forbid CALL ACTION PROGRAM...": starts
// the program with a filter of system calls.
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int cuMemAlloc_v2();
extern char** environ;
char attach_has_avx = 0;
// Returns 0 if the registers are unchanged. In xmm15 the mark is the lower, in ymm15 also the upper half. On aarch64 it
// is in both halves of v31.
int attach_call_with_marks(void* function, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t* result);
}
#if defined(__x86_64__)
asm(R"(
    .text
    .globl attach_call_with_marks
    .type attach_call_with_marks, @function
attach_call_with_marks:
    .cfi_startproc
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq %r12
    .cfi_adjust_cfa_offset 8
    pushq %r13
    .cfi_adjust_cfa_offset 8
    pushq %r14
    .cfi_adjust_cfa_offset 8
    pushq %r15
    .cfi_adjust_cfa_offset 8
    pushq %r9
    .cfi_adjust_cfa_offset 8
    movq %rdi, %rax
    movq %rsi, %rdi
    movq %rdx, %rsi
    movq %rcx, %rdx
    movq %r8, %rcx
    movabsq $0x0123456789abcdef, %rbx
    movq %rbx, %rbp
    movq %rbx, %r12
    movq %rbx, %r13
    movq %rbx, %r14
    movq %rbx, %r15
    movq %rbx, %xmm15
    cmpb $0, attach_has_avx(%rip)
    je 1f
    vinsertf128 $1, %xmm15, %ymm15, %ymm15
1:  call *%rax
    popq %r9
    movq %rax, (%r9)
    movabsq $0x0123456789abcdef, %rcx
    movl $1, %eax
    cmpq %rcx, %rbx
    jne 3f
    cmpq %rcx, %rbp
    jne 3f
    cmpq %rcx, %r12
    jne 3f
    cmpq %rcx, %r13
    jne 3f
    cmpq %rcx, %r14
    jne 3f
    cmpq %rcx, %r15
    jne 3f
    movq %xmm15, %rdx
    cmpq %rcx, %rdx
    jne 3f
    cmpb $0, attach_has_avx(%rip)
    je 2f
    vextractf128 $1, %ymm15, %xmm14
    vmovq %xmm14, %rdx
    vzeroupper
    cmpq %rcx, %rdx
    jne 3f
2:  xorl %eax, %eax
3:  popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
    .cfi_endproc
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl attach_call_with_marks
    .type attach_call_with_marks, @function
attach_call_with_marks:
    .cfi_startproc
    stp     x29, x30, [sp, #-112]!
    .cfi_def_cfa_offset 112
    .cfi_offset x29, -112
    .cfi_offset x30, -104
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    str     x5, [sp, #96]
    str     d8, [sp, #104]
    mov     x16, x0
    mov     x0, x1
    mov     x1, x2
    mov     x2, x3
    mov     x3, x4
    ldr     x19, =0x0123456789abcdef
    .irp    number, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
    mov     x\number, x19
    .endr
    fmov    d8, x19
    dup     v31.2d, x19
    blr     x16
    ldr     x5, [sp, #96]
    str     x0, [x5]
    ldr     x9, =0x0123456789abcdef
    mov     x10, #0
    .irp    number, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
    eor     x11, x\number, x9
    orr     x10, x10, x11
    .endr
    fmov    x11, d8
    eor     x11, x11, x9
    orr     x10, x10, x11
    .irp    half, 0, 1
    mov     x11, v31.d[\half]
    eor     x11, x11, x9
    orr     x10, x10, x11
    .endr
    cmp     x10, #0
    cset    w0, ne
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldr     d8, [sp, #104]
    ldp     x29, x30, [sp], #112
    ret
    .ltorg
    .cfi_endproc
)");
#endif

namespace {

constexpr int kWaitMillis = 1500;

struct Wait {
  void* function;
  uint64_t a, b, c, d;
  uint64_t result;
  int error;      // errno afterwards; -1: as before
  bool is_timed;  // else it ends because of the input
};

// Calls function(a, b, c, d) with marks in the registers that the C library's waits do not use.
bool CallsWithMarks(const Wait& wait, uint64_t* result) {
#if defined(__x86_64__)
  attach_has_avx = __builtin_cpu_supports("avx") ? 1 : 0;
#endif
  return attach_call_with_marks(wait.function, wait.a, wait.b, wait.c, wait.d, result) == 0;
}

template <typename F>
uint64_t Address(F* object) {
  return reinterpret_cast<uint64_t>(object);
}

Wait WaitOf(const std::string& kind) {
  static timespec span = {kWaitMillis / 1000, kWaitMillis % 1000 * 1'000'000};
  static timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 2;
  static sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  static epoll_event event;
  static char byte;
  static pollfd input = {STDIN_FILENO, POLLIN, 0};
  const auto f = [](auto* function) { return reinterpret_cast<void*>(function); };
  const auto minus_one = static_cast<uint64_t>(-1);
  if (kind == "poll") return {f(&poll), 0, 0, kWaitMillis, 0, 0, -1, true};
  if (kind == "ppoll") return {f(&ppoll), 0, 0, Address(&span), 0, 0, -1, true};
  if (kind == "poll_input") return {f(&poll), Address(&input), 1, uint32_t(-1), 0, 1, -1, false};
  // The library waits for its locks meanwhile.
  if (kind == "nanosleep_locks") setenv("PROBE_LOCKS", "1", 1);
  if (kind.find("nanosleep") == 0) return {f(&nanosleep), Address(&span), 0, 0, 0, 0, -1, true};
  if (kind == "epoll") {
    return {f(&epoll_wait), uint64_t(epoll_create1(0)), Address(&event), 1, kWaitMillis, 0, -1, true};
  }
  // A signal that comes meanwhile ends the wait or not, as it does without hbmprof.
  if (kind.find("_signal") != std::string::npos) {
    setenv("PROBE_SIGNAL", "1", 1);
    struct sigaction count = {};
    count.sa_handler = [](int) {};
    if (kind == "read_signal_restarting") count.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &count, nullptr);
    if (kind == "read_signal_restarting") return {f(&read), 0, Address(&byte), 1, 0, 1, -1, false};
    if (kind == "read_signal") return {f(&read), 0, Address(&byte), 1, 0, minus_one, EINTR, false};
    if (kind == "poll_signal") return {f(&poll), 0, 0, kWaitMillis, 0, minus_one, EINTR, false};
    return {f(&epoll_wait), uint64_t(epoll_create1(0)), Address(&event), 1, kWaitMillis, minus_one, EINTR, false};
  }
  if (kind == "sem") return {f(&sem_timedwait), Address(&semaphore), Address(&end), 0, 0, minus_one, ETIMEDOUT, true};
  if (kind == "cond") {
    pthread_mutex_lock(&mutex);
    return {f(&pthread_cond_timedwait), Address(&condition), Address(&mutex), Address(&end), 0, ETIMEDOUT, -1, true};
  }
  if (kind == "read") return {f(&read), 0, Address(&byte), 1, 0, 1, -1, false};
  std::fprintf(stderr, "unknown wait\n");
  std::exit(3);
}

// An empty file, mapped below the program as NVIDIA's driver maps its devices. It cannot be read.
void MapBelowTheProgram() {
  const int file = memfd_create("below", 0);
  void* const at = reinterpret_cast<void*>(uintptr_t{0x200000000});
  if (mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) != at) std::exit(3);
}

int RunWait(const std::string& kind) {
  const Wait wait = WaitOf(kind);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  std::printf("ready\n");
  std::fflush(stdout);
  constexpr int kError = 77;
  errno = kError;
  const auto start = std::chrono::steady_clock::now();
  uint64_t result = 0;
  const bool has_marks = CallsWithMarks(wait, &result);
  const int error = errno;
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  bool has_mask = true;
  for (int signal = 1; signal < 32; ++signal) has_mask = has_mask && sigismember(&after, signal) == (signal == SIGUSR2);
  if (!has_marks) std::printf("registers changed; ");
  if (static_cast<int>(result) != static_cast<int>(wait.result)) std::printf("result %d; ", static_cast<int>(result));
  if (error != (wait.error == -1 ? kError : wait.error)) std::printf("errno %d; ", error);
  if (!has_mask) std::printf("the mask changed; ");
  if (wait.is_timed && millis < kWaitMillis - 1) std::printf("only %d ms; ", static_cast<int>(millis));
  std::printf("end\n");
  std::fflush(stdout);
  char rest;
  while (read(STDIN_FILENO, &rest, 1) == 1) continue;
  return 0;
}

// From now on the system call gives an error, or ends the process or its thread.
void Forbid(const std::string& call, const std::string& action) {
  unsigned number = SYS_memfd_create;
  if (call == "openat") number = SYS_openat;
  if (call == "pselect6") number = SYS_pselect6;
  if (call == "socket") number = SYS_socket;
  unsigned result = SECCOMP_RET_ERRNO | EACCES;
  if (action == "process") result = SECCOMP_RET_KILL_PROCESS;
  if (action == "thread") result = SECCOMP_RET_KILL_THREAD;
  sock_filter steps[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, result),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {sizeof(steps) / sizeof(steps[0]), steps};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) std::exit(3);
}

std::atomic<bool> is_done{false};
std::atomic<int64_t> ticks{0};

void Tick(int) { ticks.fetch_add(1, std::memory_order_relaxed); }

// What the threads do in turn.
void Hammer(unsigned number) {
  using Task = void (*)();
  static constexpr Task kTasks[] = {
      [] {
        void* blocks[64];
        for (size_t i = 0; i < 64; ++i) blocks[i] = std::malloc(1 + i * 100);
        for (void* block : blocks) std::free(block);
      },
      [] {
        if (void* library = dlopen("libm.so.6", RTLD_NOW)) dlclose(library);
        if (void* library = dlopen(HAMMER_LIBRARY, RTLD_NOW | RTLD_LOCAL)) dlclose(library);
      },
      [] {
        const pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, nullptr, 0);
      },
      [] { std::thread([] { usleep(10); }).join(); },
      [] { dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 0; }, nullptr); },
      [] {
        try {
          throw std::runtime_error("x");
        } catch (const std::exception&) {
        }
      },
      [] {
        for (int i = 0; i < 1000; ++i) cuMemAlloc_v2();
      },
      [] {
        char name[] = "/bin/true";
        char* arguments[] = {name, nullptr};
        pid_t child = 0;
        if (posix_spawn(&child, name, nullptr, nullptr, arguments, environ) == 0) waitpid(child, nullptr, 0);
      },
      [] { usleep(2000); },
  };
  constexpr unsigned kCount = sizeof(kTasks) / sizeof(kTasks[0]);
  for (unsigned i = number; !is_done; ++i) {
    // Of many threads most wait, so that the processor has time for the others.
    if (number >= 8 && i % 16 != 0) {
      usleep(20'000);
      continue;
    }
    kTasks[i % kCount]();
  }
}

int RunHammer(int count) {
  signal(SIGALRM, &Tick);
  const itimerval every = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &every, nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(&Hammer, static_cast<unsigned>(i));
  std::printf("ready\n");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) continue;
  is_done = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("%s\n", ticks > 0 ? "done" : "no signal came");
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  cuMemAlloc_v2();
  if (std::getenv("MAP_BELOW") != nullptr) MapBelowTheProgram();
  // Each wait with a time limit takes some milliseconds longer, as on a busy machine.
  if (std::getenv("WAIT_LONGER") != nullptr) prctl(PR_SET_TIMERSLACK, 4'000'000, 0, 0, 0);
  if (const char* const call = std::getenv("FORBID")) Forbid(call, std::getenv("FORBID_ACTION"));
  if (what == "forbid" && count > 4) {
    Forbid(words[2], words[3]);
    execv(words[4], words + 4);
    return 3;
  }
  if (what == "wait" && count > 2) return RunWait(words[2]);
  if (what == "hammer" && count > 2) return RunHammer(std::atoi(words[2]));
  if (what == "exec") {
    std::printf("ready\n");
    std::fflush(stdout);
    char line[2];
    if (read(STDIN_FILENO, line, sizeof(line)) < 1) return 3;
    execl(words[0], words[0], "wait", "read", nullptr);
    return 3;
  }
  if (what == "spin") {
    std::printf("ready\n");
    std::fflush(stdout);
    for (volatile uint64_t i = 0;; i = i + 1) continue;
  }
  return 2;
}
