// This file is compiled twice, with CALL_CHAIN defined as the namespace of the build.
#include "benchmarks/call_chain.h"

namespace hbmprof::benchmarks::CALL_CHAIN {
namespace {

template <int kFrame>
[[gnu::noinline]] void Step(int depth, uint64_t path, Leaf leaf, void* argument) {
  // Frames of different sizes, as in real code.
  volatile char frame[16 + 48 * kFrame];
  frame[0] = static_cast<char>(depth);
  if (depth <= 1) {
    leaf(argument);
  } else if ((path & 1) != 0) {
    Step<(kFrame + 1) % 4>(depth - 1, path >> 1, leaf, argument);
  } else {
    Step<(kFrame + 2) % 4>(depth - 1, path >> 1, leaf, argument);
  }
  frame[1] = frame[0];  // so that the compiler makes no tail call above
}

}  // namespace

void Descend(int depth, uint64_t path, Leaf leaf, void* argument) {
  Step<0>(depth, path, leaf, argument);
  asm volatile("");
}

}  // namespace hbmprof::benchmarks::CALL_CHAIN
