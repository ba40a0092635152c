// Completes: the one place where exceptions end that the tracker's own work throws inside a wrapped call.
#ifndef HBMPROF_SRC_BASE_COMPLETES_H_
#define HBMPROF_SRC_BASE_COMPLETES_H_

#include <exception>

namespace hbmprof::internal {

// Calls `work`. Returns false if it threw, which it does when the host has no memory. The vendor's own call belongs
// outside: a thread can be cancelled in it, and glibc ends the process if a cancellation is caught.
template <typename Work>
[[nodiscard]] bool Completes(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_COMPLETES_H_
