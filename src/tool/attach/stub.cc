// Position-independent code that is copied into the process. It uses nothing outside its section and, with the compile
// options of src/tool/CMakeLists.txt, no vector registers. It changes no memory of the program's, and no register that
// was not saved.
#include "src/tool/attach/stub.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/time_types.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <cstddef>

static_assert(offsetof(hbmprof::tool::StubData, registers) == 0, "the assembly uses the offsets of user_regs_struct");
static_assert(kStubStack == 64, "the assembly has the number");

#if defined(__x86_64__)
// At the end, rcx and r11 are lost: a system call changes them anyway. The data lies below the stack pointer, where a
// signal handler can write as soon as the stack pointer is the old one. So this is the last register.
asm(R"(
    .pushsection hbmprof_stub, "ax", @progbits
    .globl hbmprof_stub_entry
    .hidden hbmprof_stub_entry
hbmprof_stub_entry:
    endbr64
    movq    %rbx, %rdi
    call    hbmprof_stub_begin
    testq   %rax, %rax
    jz      1f
    movq    %rax, %rsp
    movq    %rbx, %rdi
    call    hbmprof_stub_load
    leaq    -64(%rbx), %rsp
1:  movq    %rbx, %rdi
    call    hbmprof_stub_end
    pushq   144(%rbx)
    popfq
    movq    0(%rbx), %r15
    movq    8(%rbx), %r14
    movq    16(%rbx), %r13
    movq    24(%rbx), %r12
    movq    32(%rbx), %rbp
    movq    56(%rbx), %r10
    movq    64(%rbx), %r9
    movq    72(%rbx), %r8
    movq    80(%rbx), %rax
    movq    96(%rbx), %rdx
    movq    104(%rbx), %rsi
    movq    112(%rbx), %rdi
    movq    128(%rbx), %rcx
    movq    152(%rbx), %r11
    movq    40(%rbx), %rbx
    movq    %r11, %rsp
    jmp     *%rcx
    .popsection
)");
#elif defined(__aarch64__)
// At the end, x16 and x17 are lost: the functions of glibc that wait do not use them across a system call. `ret` does
// not need a landing pad, as `br` does. See the other processor for the order.
asm(R"(
    .pushsection hbmprof_stub, "ax", @progbits
    .globl hbmprof_stub_entry
    .hidden hbmprof_stub_entry
hbmprof_stub_entry:
    mov     x0, x19
    bl      hbmprof_stub_begin
    cbz     x0, 1f
    mov     sp, x0
    mov     x0, x19
    bl      hbmprof_stub_load
    sub     sp, x19, #64
1:  mov     x0, x19
    bl      hbmprof_stub_end
    ldr     x16, [x19, #264]
    msr     nzcv, x16
    ldp     x0, x1, [x19, #0]
    ldp     x2, x3, [x19, #16]
    ldp     x4, x5, [x19, #32]
    ldp     x6, x7, [x19, #48]
    ldp     x8, x9, [x19, #64]
    ldp     x10, x11, [x19, #80]
    ldp     x12, x13, [x19, #96]
    ldp     x14, x15, [x19, #112]
    ldr     x18, [x19, #144]
    ldp     x20, x21, [x19, #160]
    ldp     x22, x23, [x19, #176]
    ldp     x24, x25, [x19, #192]
    ldp     x26, x27, [x19, #208]
    ldp     x28, x29, [x19, #224]
    ldr     x30, [x19, #240]
    ldp     x16, x17, [x19, #248]
    ldr     x19, [x19, #152]
    mov     sp, x16
    ret     x17
    .popsection
)");
#endif

namespace hbmprof::tool {
namespace {

#define HBMPROF_IN_STUB extern "C" __attribute__((section("hbmprof_stub"), used, visibility("hidden")))
#define HBMPROF_INLINE __attribute__((always_inline)) inline

// A borrowed thread waits for the command for so long, before and after the calls. It counts the waits of a millisecond
// too: a filter of system calls can make the clock fail.
constexpr int64_t kMostNanos = 4'500'000'000;
constexpr int kMostWaits = 4500;

HBMPROF_INLINE long SystemCall(long number, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#endif
}

template <typename T>
HBMPROF_INLINE long Address(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

template <typename Function>
HBMPROF_INLINE Function* FunctionAt(uint64_t address) {
  return reinterpret_cast<Function*>(address);
}

// By pselect only: the kernel continues a futex, poll or nanosleep with a timeout from data of the thread, which the
// wait that was interrupted still needs.
HBMPROF_INLINE void WaitOneMillisecond() {
  __kernel_timespec time = {0, 1'000'000};
  SystemCall(SYS_pselect6, 0, 0, 0, 0, Address(&time), 0);
}

HBMPROF_INLINE int64_t Nanos() {
  __kernel_timespec now = {0, 0};
  SystemCall(SYS_clock_gettime, CLOCK_MONOTONIC, Address(&now), 0);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

#if defined(__x86_64__)
HBMPROF_INLINE void SaveVectors(char* to) { asm volatile("xsave64 (%0)" : : "r"(to), "a"(-1), "d"(-1) : "memory"); }
HBMPROF_INLINE void RestoreVectors(const char* from) {
  asm volatile("xrstor64 (%0)" : : "r"(from), "a"(-1), "d"(-1) : "memory");
}
HBMPROF_INLINE uint64_t RestartingSignals() { return 0; }
#elif defined(__aarch64__)
// The parts of longer vectors are lost in every system call, so also in the wait.
#define HBMPROF_FOR_ALL_VECTORS(instruction)                                                          \
  instruction " {v0.2d-v3.2d}, [%0], #64\n" instruction " {v4.2d-v7.2d}, [%0], #64\n" instruction     \
              " {v8.2d-v11.2d}, [%0], #64\n" instruction " {v12.2d-v15.2d}, [%0], #64\n" instruction  \
              " {v16.2d-v19.2d}, [%0], #64\n" instruction " {v20.2d-v23.2d}, [%0], #64\n" instruction \
              " {v24.2d-v27.2d}, [%0], #64\n" instruction " {v28.2d-v31.2d}, [%0], #64\n"
HBMPROF_INLINE void SaveVectors(char* to) {
  asm volatile(HBMPROF_FOR_ALL_VECTORS("st1") "mrs x9, fpcr\n mrs x10, fpsr\n stp x9, x10, [%0]"
               : "+r"(to)
               :
               : "x9", "x10", "memory");
}
HBMPROF_INLINE void RestoreVectors(const char* from) {
  asm volatile(HBMPROF_FOR_ALL_VECTORS("ld1") "ldp x9, x10, [%0]\n msr fpcr, x9\n msr fpsr, x10"
               : "+r"(from)
               :
               : "x9", "x10", "memory");
}
HBMPROF_INLINE uint64_t RestartingSignals() {
  uint64_t signals = 0;
  for (int signal = 1; signal <= 64; ++signal) {
    uint64_t action[4] = {};  // of the kernel: handler, flags, restorer, mask
    SystemCall(SYS_rt_sigaction, signal, 0, Address(action), sizeof(action[3]));
    if ((action[1] & SA_RESTART) != 0) signals |= uint64_t{1} << (signal - 1);
  }
  return signals;
}
#endif

HBMPROF_INLINE void CallLibrary(StubData* data) {
  const auto scratch = reinterpret_cast<const char*>(data->scratch);
  int* const error = FunctionAt<int*()>(data->errno_location)();
  const int old_error = *error;
  void* const handle = FunctionAt<void*(const char*, int)>(data->open)(scratch + kPathAt, static_cast<int>(data->mode));
  data->handle = reinterpret_cast<uint64_t>(handle);
  if (handle != nullptr) {
    data->function =
        reinterpret_cast<uint64_t>(FunctionAt<void*(void*, const char*)>(data->symbol)(handle, scratch + kFunctionAt));
    if (data->function != 0) data->result = FunctionAt<int(const char*)>(data->function)(scratch + kOptionsAt);
  } else if (data->error != 0) {
    data->error_text = reinterpret_cast<uint64_t>(FunctionAt<const char*()>(data->error)());
  }
  *error = old_error;
  data->is_done = 1;
}

HBMPROF_INLINE void SetState(StubData* data, int32_t state) { __atomic_store_n(&data->state, state, __ATOMIC_RELEASE); }

}  // namespace

// On the thread's own stack. Returns the stack for the calls; 0: there is none.
HBMPROF_IN_STUB uint64_t hbmprof_stub_begin(StubData* data) {
  SystemCall(SYS_rt_sigprocmask, SIG_SETMASK, Address(&data->blocked), 0, sizeof(data->blocked));
  const long memory = SystemCall(SYS_mmap, 0, kScratchBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory < 0) {
    SetState(data, static_cast<int32_t>(memory));
    return 0;
  }
  data->scratch = static_cast<uint64_t>(memory);
  return data->scratch + kScratchBytes - kStubStack;
}

HBMPROF_IN_STUB void hbmprof_stub_load(StubData* data) {
  const auto vectors = reinterpret_cast<char*>(data->scratch);
  SaveVectors(vectors);
  data->restarting = RestartingSignals();
  if (data->memory_name[0] != '\0') {
    data->memory_file = static_cast<int32_t>(SystemCall(SYS_memfd_create, Address(data->memory_name), MFD_CLOEXEC, 0));
  }
  SetState(data, StubData::kReady);
  uint32_t go = 0;
  const int64_t end = Nanos() + kMostNanos;
  for (int i = 0; (go = __atomic_load_n(&data->go, __ATOMIC_ACQUIRE)) == 0 && i < kMostWaits && Nanos() < end; ++i) {
    WaitOneMillisecond();
  }
  if (go == 1) CallLibrary(data);
  if (data->memory_file >= 0) SystemCall(SYS_close, data->memory_file, 0, 0);
  RestoreVectors(vectors);
}

// On the thread's own stack. Returns if the command has died: the thread then restores itself.
HBMPROF_IN_STUB void hbmprof_stub_end(StubData* data) {
  int waits = kMostWaits;
  const int64_t end = Nanos() + kMostNanos;
  if (data->scratch != 0) {
    SystemCall(SYS_munmap, static_cast<long>(data->scratch), kScratchBytes, 0);
    if (data->go == 0) waits = 1;
    SetState(data, StubData::kCalled);
  }
  for (; waits > 0 && Nanos() < end; --waits) WaitOneMillisecond();
  SetState(data, StubData::kLeft);
  SystemCall(SYS_rt_sigprocmask, SIG_SETMASK, Address(&data->mask), 0, sizeof(data->mask));
}

}  // namespace hbmprof::tool
