// Replacements for functions of abseil, for a shared library that contains Debian's static libraries of abseil.
//
// Debian's static libraries are not built for use in shared libraries: cordz_functions.cc has a thread-local variable
// with a relocation (on x86-64: R_X86_64_TPOFF32) that the linker rejects in a shared library. The objects of
// absl::Status and absl::Cord refer to that file, because a Status can hold a Cord, and cordz samples Cords. With the
// definitions below, the linker leaves out the objects of cordz. No Cord is ever sampled here, so the functions that
// handle a sample are never called.
//
// absl::Status also refers to four functions of absl::Cord, for its payloads. No Status of this library has a payload,
// so no Cord exists. The object with these functions prints Cords to streams: with it, the library would contain all
// streams and locales of libstdc++ (libstdcxx.cc).
//
// Why there is no simpler way:
// - The shared libraries of abseil are not used, because this library is preloaded into every process that the program
//   starts, and must not need another library there.
// - A status type of our own would have to replace absl::Status in all layers below and including the public API, since
//   this library contains functions of that API.
// - Abseil could be built from source with -fPIC. Then this file is not compiled (gpu.cmake). Dependencies of this
//   project are distribution packages, though, so the default build does not do that.
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/internal/cordz_functions.h"
#include "absl/strings/internal/cordz_info.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

// Called by a Cord for its sample only.
void Mutex::AssertHeld() const ABSL_NO_THREAD_SAFETY_ANALYSIS { std::abort(); }

void Cord::DestroyCordSlow() { std::abort(); }
void Cord::InlineRep::UnrefTree() { std::abort(); }
bool Cord::EqualsImpl(const Cord&, size_t) const { std::abort(); }
Cord::operator std::string() const { std::abort(); }

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
