// TryRun: calls code of the library where no exception may pass on, such as in a wrapped call or in the function of a
// thread.
#ifndef HBMPROF_SRC_BASE_TRY_RUN_H_
#define HBMPROF_SRC_BASE_TRY_RUN_H_

#include <exception>

namespace hbmprof::internal {

// Calls `work`. Returns false if it threw a std::exception: std::bad_alloc if the host has no memory, or what a device
// probe of the program throws. `work` must not make the vendor's own call, whose exceptions are the program's.
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
