// Stand-ins for a few functions of abseil and libelf, for a library that holds static copies of both. A distribution's
// static libraries are built for executables: what has a thread-local variable there cannot go into a shared library.
// The linker takes these functions instead, and so leaves those objects out. With libraries built position-independent
// this file is not needed, see CMakeLists.txt.
//
// abseil: the sampling of Cords, which absl::Status can hold. Nothing is ever sampled here, so what handles a sample is
// never called. libelf: its last error, per thread.
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/strings/internal/cordz_functions.h"
#include "absl/strings/internal/cordz_info.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

// A Cord asserts that its sample is locked.
void Mutex::AssertHeld() const ABSL_NO_THREAD_SAFETY_ANALYSIS { std::abort(); }

namespace cord_internal {

thread_local int64_t cordz_next_sample = std::numeric_limits<int64_t>::max();

bool cordz_should_profile_slow() {
  cordz_next_sample = std::numeric_limits<int64_t>::max();
  return false;
}

void CordzInfo::TrackCord(InlineData&, MethodIdentifier) { std::abort(); }
void CordzInfo::MaybeTrackCordImpl(InlineData&, const InlineData&, MethodIdentifier) { std::abort(); }
void CordzInfo::Untrack() { std::abort(); }
void CordzInfo::Lock(MethodIdentifier) ABSL_NO_THREAD_SAFETY_ANALYSIS { std::abort(); }
void CordzInfo::Unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { std::abort(); }

}  // namespace cord_internal
ABSL_NAMESPACE_END
}  // namespace absl

extern "C" {

namespace {
thread_local int elf_error = 0;
}

[[gnu::visibility("hidden")]] void __libelf_seterrno(int error) { elf_error = error; }

[[gnu::visibility("hidden")]] int elf_errno() {
  const int error = elf_error;
  elf_error = 0;
  return error;
}
}
