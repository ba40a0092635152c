// A library in the place of libhbmprof_gpu.so. Its hbmprof_attach uses what the real one uses: the stack, malloc,
// errno, the vector registers, a thread, the dynamic linker.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/base/spin_lock.h"

#ifdef LARGE_TLS
[[gnu::tls_model("initial-exec")]] thread_local volatile char large[1 << 16];
#endif

namespace {

std::atomic<int> calls{0};

void* Return(void*) { return nullptr; }

}  // namespace

extern "C" {

// Returns 0, or a number that says what is wrong with the thread that calls it.
[[gnu::visibility("default")]] int hbmprof_attach(const char* options) {
  volatile char stack[250 << 10];
  for (size_t i = 0; i < sizeof(stack); i += 512) stack[i] = 1;
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (sigismember(&blocked, SIGPROF) != 1 || sigismember(&blocked, SIGTERM) != 1) return 101;
  if (std::strcmp(options, "NAME=VALUE\n") != 0) return 102;
  if (std::getenv("PROBE_SIGNAL") != nullptr) pthread_kill(pthread_self(), SIGUSR1);
  if (std::getenv("PROBE_LOCKS") != nullptr) {
    hbmprof::internal::Backoff backoff;
    for (int i = 0; i < 420; ++i) backoff.Wait();  // the last ones sleep
  }
  errno = EIO;
  void* const memory = std::malloc(1000);
  std::free(memory);
  dlsym(RTLD_DEFAULT, "no_such_function");
  pthread_t thread;
  if (pthread_create(&thread, nullptr, &Return, nullptr) != 0) return 103;
  pthread_join(thread, nullptr);
#ifdef LARGE_TLS
  large[0] = 1;
#endif
#if defined(__x86_64__)
  asm volatile("pcmpeqd %%xmm0, %%xmm0; movaps %%xmm0, %%xmm1; movaps %%xmm0, %%xmm7; movaps %%xmm0, %%xmm15" ::
                   : "xmm0", "xmm1", "xmm7", "xmm15");
  if (__builtin_cpu_supports("avx")) asm volatile("vzeroall" ::: "xmm0", "xmm1", "xmm7", "xmm15");
#elif defined(__aarch64__)
  asm volatile("movi v0.2d, #0; movi v7.2d, #0; movi v16.2d, #0; movi v31.2d, #0" ::: "v0", "v7", "v16", "v31");
#endif
  calls.fetch_add(1);
  return 0;
}
[[gnu::visibility("default")]] int attach_probe_calls() { return calls.load(); }
}
