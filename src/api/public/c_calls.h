// What functions of the C interface (hbmprof/c_api.h) share.
#ifndef HBMPROF_SRC_API_PUBLIC_C_CALLS_H_
#define HBMPROF_SRC_API_PUBLIC_C_CALLS_H_

#include <cstddef>
#include <new>
#include <type_traits>

#include "hbmprof/allocation.h"
#include "hbmprof/c_api.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// The bytes of a caller's struct up to the end of its field.
#define HBMPROF_END_OF(type, field) (offsetof(type, field) + sizeof(type::field))

template <typename Struct>
bool HasBytes(const Struct* given, size_t least) {
  return given != nullptr && given->struct_size >= least;
}

// Whether it is the number of a device; the device with that number.
bool IsDevice(int device);
DeviceId DeviceNumber(int device);
// If `given` is null, all attributes are zero.
Attributes ToAttributes(const hbmprof_attributes* given);

// Calls use(profiler) and returns its result: 1 for true, or if it has none. Returns 0 if the host has no memory for
// the profiler.
template <typename Use>
int WithDefault(const Use& use) try {
  if constexpr (std::is_void_v<decltype(use(Profiler::Default()))>) {
    use(Profiler::Default());
    return 1;
  } else {
    return use(Profiler::Default()) ? 1 : 0;
  }
} catch (const std::bad_alloc&) {
  return 0;
}

// Like WithDefault, with use(profiler, attributes). Returns 0 if recording is off, or if the struct has no size (an
// allocation then counts as dropped).
template <typename Use>
int WithAttributes(const hbmprof_attributes* given, bool is_allocation, const Use& use) {
  return WithDefault([&](Profiler& profiler) {
    if (!profiler.enabled()) return false;
    if (given != nullptr && !HasBytes(given, HBMPROF_END_OF(hbmprof_attributes, device))) {
      if (is_allocation) profiler.RecordDropped(0);
      return false;
    }
    return use(profiler, ToAttributes(given));
  });
}

// Like WithAttributes, with use(profiler, pool).
template <typename Use>
int WithPool(const hbmprof_attributes* given, bool is_allocation, const Use& use) {
  return WithAttributes(given, is_allocation, [&](Profiler& profiler, const Attributes& attributes) {
    return use(profiler, Pool{attributes.device, attributes.allocator});
  });
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PUBLIC_C_CALLS_H_
