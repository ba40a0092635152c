// ReadFrameRule reads nothing outside of the unwind tables and returns, whatever the tables contain.
//
// An input is one byte, followed by the memory of an object from its .eh_frame_hdr section to the end of .eh_frame. The
// byte selects the tested addresses, in addition to the starts and ends of functions.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "src/capture/cfi.h"
#include "src/capture/rules.h"

namespace {

using hbmprof::internal::FrameRule;
using hbmprof::internal::PackedRule;
using hbmprof::internal::ReadableRanges;
using hbmprof::internal::ReadFrameRule;

// Bytes that end at the end of a mapping, so that a read behind them is a fault. A read before the mapping is a fault,
// too.
class Bytes {
 public:
  Bytes() {
    const size_t bytes = kCapacity + 2 * kPageBytes;
    void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    end_ = static_cast<uint8_t*>(memory) + kPageBytes + kCapacity;
    if (mprotect(end_ - kCapacity, kCapacity, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  const uint8_t* Put(const uint8_t* data, size_t size) {
    uint8_t* begin = end_ - size;
    // The header must be aligned. If the size does not allow that, the bytes end a few bytes earlier.
    begin -= reinterpret_cast<uintptr_t>(begin) % 4;
    std::memmove(begin, data, size);
    return begin;
  }
  static constexpr size_t kCapacity = size_t{1} << 20;

 private:
  static constexpr size_t kPageBytes = 4096;
  uint8_t* end_;
};

// Checks that a packed rule has the same numbers as `rule`, or is kInexpressible, or has no numbers.
void Check(const FrameRule& rule) {
  const PackedRule packed = PackedRule::Of(rule, 5);
  if (packed.object() != 5) std::abort();
  if (packed.kind() == FrameRule::kInexpressible || rule.kind == FrameRule::kNone) return;
  if (packed.kind() != rule.kind || packed.fp_saved() != rule.fp_saved || packed.fp_offset() != rule.fp_offset) {
    std::abort();
  }
  if (packed.cfa_offset() != rule.cfa_offset) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Bytes bytes;
  if (size < 2 || size > Bytes::kCapacity) return 0;
  const uint8_t step = data[0];
  const uint8_t* header = bytes.Put(data + 1, --size);
  const auto base = reinterpret_cast<uintptr_t>(header);
  ReadableRanges readable;
  readable.Add(base, base + size);
  const auto check = [&](uintptr_t address) { Check(ReadFrameRule(header, readable, address)); };
  // The pairs of the header's table, if it is at the usual position.
  constexpr size_t kTableAt = 12;
  constexpr size_t kMaxPairs = 64;
  for (size_t i = 0; i < kMaxPairs && kTableAt + 8 * (i + 1) <= size; ++i) {
    int32_t start;
    std::memcpy(&start, header + kTableAt + 8 * i, sizeof(start));
    const uintptr_t function = base + static_cast<uintptr_t>(int64_t{start});
    for (const uintptr_t distance : {uintptr_t{0}, uintptr_t{1}, uintptr_t{4}, uintptr_t{step}, 5 * uintptr_t{step}}) {
      check(function + distance);
    }
    check(function - 1);
  }
  check(base);
  check(0);
  check(~uintptr_t{0});
  return 0;
}
