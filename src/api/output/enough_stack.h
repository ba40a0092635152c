// WithEnoughStack: runs work that needs much stack, such as writing a profile with the names of functions. Code that
// runs in a thread of the program calls it, because the stack of that thread can be small.
#ifndef HBMPROF_SRC_API_OUTPUT_ENOUGH_STACK_H_
#define HBMPROF_SRC_API_OUTPUT_ENOUGH_STACK_H_

#include <cstddef>

#include "src/base/background_thread.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

// Calls work(). If the calling thread has less than 512 KiB of stack left, or if its stack is not known (that of a
// fiber or a signal handler), a new thread makes the call, and the calling thread waits for its end. Returns false if
// that thread cannot be started; then work() is not called. REQUIRES: `work` does not throw, and uses no data of the
// calling thread, such as its tags.
template <typename Work>
bool WithEnoughStack(const Work& work) {
  constexpr size_t kEnoughBytes = size_t{512} << 10;
  if (AvailableStackBytes() >= kEnoughBytes) {
    work();
    return true;
  }
  return RunInBackgroundThread(work);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_ENOUGH_STACK_H_
