// TryRun: calls code of the library where no std::exception may pass on, such as in a wrapped call or in the function
// of a thread.
#ifndef HBMPROF_SRC_BASE_TRY_RUN_H_
#define HBMPROF_SRC_BASE_TRY_RUN_H_

#include <exception>

namespace hbmprof::internal {

// Calls `work`. Returns false if it threw a std::exception, which happens if the host has no memory (std::bad_alloc).
// Any other exception passes on. `work` must not make the vendor's own call, whose exceptions are the program's.
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
