// Threads of the library in the program's process.
#ifndef HBMPROF_SRC_BASE_BACKGROUND_THREAD_H_
#define HBMPROF_SRC_BASE_BACKGROUND_THREAD_H_

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include <cstddef>

#include "src/base/no_cancellation.h"

namespace hbmprof::internal {

// Starts a detached thread that runs run(argument). The thread has all signals blocked, so that it gets none of the
// program's signals. Its stack has 1 MiB. Returns false if no thread can be started. Any thread may call it.
inline bool StartBackgroundThread(void* (*run)(void*), void* argument) {
  constexpr size_t kStackBytes = size_t{1} << 20;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = pthread_create(&thread, &attributes, run, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return is_started;
}

// Calls work() in such a thread and waits for its end. Returns false if no thread can be started; then work() is not
// called. REQUIRES: `work` does not throw, and uses no data of the calling thread, such as its tags.
template <typename Work>
bool RunInBackgroundThread(const Work& work) {
  const NoCancellation no_cancellation;
  struct Call {
    const Work* work;
    sem_t done;
  } call = {&work, {}};
  sem_init(&call.done, 0, 0);
  const auto run = [](void* argument) -> void* {
    auto* const on_stack = static_cast<Call*>(argument);
    (*on_stack->work)();
    sem_post(&on_stack->done);
    return nullptr;
  };
  if (!StartBackgroundThread(run, &call)) return false;
  while (sem_wait(&call.done) != 0) continue;
  return true;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_BACKGROUND_THREAD_H_
