#include "benchmarks/trace.h"

#include <algorithm>
#include <cstdint>
#include <istream>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace hbmprof::benchmarks {
namespace {

constexpr char kFirstLine[] = "hbmprof-trace 1";
constexpr uint64_t kMaxNumber = std::numeric_limits<int32_t>::max();

// Reads a space and a decimal number at the beginning of `text`, and moves the beginning of `text` after them.
bool TakeNumber(const char** text, uint64_t* number) {
  const char* at = *text;
  if (*at++ != ' ' || *at < '0' || *at > '9') return false;
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    if (value > (uint64_t{1} << 58)) return false;
    value = value * 10 + static_cast<uint64_t>(*at - '0');
  }
  *number = value;
  *text = at;
  return true;
}

bool ParseLine(const char* line, Trace* trace) {
  const char kind = *line;
  const char* rest = line + (kind == '\0' ? 0 : 1);
  uint64_t buffer = 0;
  uint64_t bytes = 0;
  uint64_t number = 0;
  switch (kind) {
    case 's': {
      std::vector<uint32_t> frames;
      while (TakeNumber(&rest, &number) && number <= kMaxNumber) frames.push_back(static_cast<uint32_t>(number));
      trace->stacks.push_back(std::move(frames));
      break;
    }
    case 'a':
      if (!TakeNumber(&rest, &buffer) || !TakeNumber(&rest, &bytes) || !TakeNumber(&rest, &number)) return false;
      if (buffer > kMaxNumber || number >= trace->stacks.size()) return false;
      trace->events.push_back(
          {static_cast<uint32_t>(buffer), static_cast<int32_t>(number), static_cast<int64_t>(bytes)});
      break;
    case 'f':
      if (!TakeNumber(&rest, &buffer) || buffer > kMaxNumber) return false;
      trace->events.push_back({static_cast<uint32_t>(buffer), -1, 0});
      break;
    default:
      return false;
  }
  trace->buffers = std::max(trace->buffers, static_cast<uint32_t>(buffer + 1));
  return *rest == '\0';
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(std::istream& input) {
  Trace trace;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    if (number == 1 ? line != kFirstLine : !ParseLine(line.c_str(), &trace)) {
      return absl::InvalidArgumentError("line " + std::to_string(number) +
                                        " does not have the format of a trace: " + line);
    }
  }
  if (trace.events.empty()) return absl::InvalidArgumentError("no event");
  return trace;
}

}  // namespace hbmprof::benchmarks
