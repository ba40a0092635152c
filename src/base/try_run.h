// TryRun: catches the exceptions that the tracker's own code throws inside a wrapped call. No other code catches
// them.
#ifndef HBMPROF_SRC_BASE_TRY_RUN_H_
#define HBMPROF_SRC_BASE_TRY_RUN_H_

#include <exception>

namespace hbmprof::internal {

// Calls `work`. Returns false if it threw an exception, which happens if there is no host memory. `work` must not make
// the vendor's own call: the thread can be cancelled in it, and glibc ends the process if a cancellation is caught.
template <typename Work>
[[nodiscard]] bool TryRun(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_TRY_RUN_H_
