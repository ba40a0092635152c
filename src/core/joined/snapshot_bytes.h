// Snapshots and their parts as bytes, which pass between the injected library's profiler and a copy of this library
// that has joined it (injected.h). Both have the same version and are in one process, so numbers are in the byte order
// of the process.
#ifndef HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_
#define HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/completes.h"

namespace hbmprof::internal {

// For a Snapshot, DeviceStats, TrackerStats, FoundBuffer or DeviceProbe.
template <typename T>
std::string ToBytes(const T& value);
// Reads the bytes that ToBytes made. Returns false if the bytes are damaged. The values in the result are then
// unspecified.
template <typename T>
bool FromBytes(std::string_view bytes, T* value);

// A value that arrives as bytes, by a call of Receive with the address of the Answer.
template <typename T>
struct Answer {
  static void Receive(void* argument, const char* bytes, size_t size) noexcept {
    auto& answer = *static_cast<Answer*>(argument);
    answer.complete = Completes([&] { answer.complete = FromBytes({bytes, size}, &answer.value); }) && answer.complete;
  }

  T value;
  bool complete = false;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_
