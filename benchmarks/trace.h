// Trace: the allocations and frees of a run of a program, as written by trace_recorder.cc. docs/trace.md describes the
// format.
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

// Reads `input` to its end. Error: kInvalidArgument if a line does not have the format of docs/trace.md; the message
// has the number of the line.
absl::StatusOr<Trace> ReadTrace(std::istream& input);

}  // namespace hbmprof::benchmarks

#endif  // HBMPROF_BENCHMARKS_TRACE_H_
