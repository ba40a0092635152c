// The order of events around the real calls, which are passed as callables. The wrappers of CUDA's runtime use it, too.
#ifndef HBMPROF_SRC_BACKENDS_CALLS_EVENTS_H_
#define HBMPROF_SRC_BACKENDS_CALLS_EVENTS_H_

#include <cstddef>
#include <cstdint>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {

// Returns the bytes of pitched memory; SIZE_MAX if they are more than that.
inline size_t PitchedBytes(size_t pitch, size_t rows, size_t slices = 1) {
  size_t bytes = 0;
  const bool is_too_large =
      __builtin_mul_overflow(pitch, rows, &bytes) || __builtin_mul_overflow(bytes, slices, &bytes);
  return is_too_large ? SIZE_MAX : bytes;
}

// Describes a successful allocation. Its construction makes no calls and takes no memory.
struct DriverBuffer {
  BufferId id;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = -1;  // -1: the current one
};

// Calls `record`, which records `bytes` bytes. If the host has no memory for the record, the bytes are counted as
// dropped.
template <typename Record>
void RecordOrDrop(Profiler& profiler, size_t bytes, const Record& record) {
  if (!TryRun(record)) profiler.RecordDropped(bytes);
}

// The ways to track a call. Each makes the real call once, outside of all code that can fail, and returns its result.

// Calls `take`, which removes entries of tables and records, and returns whether it has removed a record. Then calls
// `call`. If that does not return `success`, a removed record counts as a refused free.
template <typename Result, typename Call, typename Take>
Result TakeThenCall(Profiler& profiler, Result success, const Call& call, const Take& take) {
  bool has_taken = false;
  RecordOrDrop(profiler, 0, [&] { has_taken = take(); });
  const Result result = call();
  if (result != success && has_taken) profiler.RecordRefusedFree();
  return result;
}

// As TakeThenCall if recording is on. Otherwise only calls `call`.
template <typename Result, typename Call, typename Take>
Result RemoveThenCall(Profiler& profiler, Result success, const Call& call, const Take& take) {
  return profiler.enabled() ? TakeThenCall(profiler, success, call, take) : call();
}

// Calls `allocate`. If it returns `success` and recording is on, records the buffer that `describe()` returns, with the
// attributes that `attributes(buffer)` returns and the stack of `caller`. Only `attributes` may query the driver.
template <typename Result, typename Allocate, typename Describe, typename AttributesOf>
Result AllocateAndRecord(Profiler& profiler, const Caller& caller, Result success, const Allocate& allocate,
                         const Describe& describe, const AttributesOf& attributes) {
  const Result result = allocate();
  if (result == success && profiler.enabled()) {
    const DriverBuffer buffer = describe();
    RecordOrDrop(profiler, buffer.bytes,
                 [&] { profiler.RecordAllocFrom(caller, buffer.id, buffer.bytes, attributes(buffer)); });
  }
  return result;
}

// Removes the record of `id`, then calls `free`.
template <typename Result, typename Free>
Result RemoveAndFree(Profiler& profiler, BufferId id, Result success, const Free& free) {
  return RemoveThenCall(profiler, success, free, [&] { return profiler.RecordFree(id).has_value(); });
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_EVENTS_H_
