// Trace: the allocations and frees of a program's run, as trace_recorder.cc wrote them. docs/trace.md has the format.
#ifndef HBMPROF_BENCHMARKS_TRACE_H_
#define HBMPROF_BENCHMARKS_TRACE_H_

#include <cstdint>
#include <istream>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof::benchmarks {

struct Trace {
  struct Event {
    uint32_t buffer;
    int32_t stack;  // index of `stacks`; -1: a free
    int64_t bytes;  // of an allocation
  };
  std::vector<std::vector<uint32_t>> stacks;  // numbers of code addresses, innermost first
  std::vector<Event> events;
  uint32_t buffers = 0;  // one more than the highest buffer number
};

// Reads `input` to its end. Errors: kInvalidArgument, with the number of the line that is not as docs/trace.md says.
absl::StatusOr<Trace> ReadTrace(std::istream& input);

}  // namespace hbmprof::benchmarks

#endif  // HBMPROF_BENCHMARKS_TRACE_H_
