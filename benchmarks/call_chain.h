// A chain of calls with a given depth and path, which ends in a function of the benchmark. It makes the stacks that
// captures find. Built twice, with and without frame pointers (call_chain.cc).
#ifndef HBMPROF_BENCHMARKS_CALL_CHAIN_H_
#define HBMPROF_BENCHMARKS_CALL_CHAIN_H_

#include <cstdint>

namespace hbmprof::benchmarks {

using Leaf = void (*)(void* argument);

// Calls `leaf(argument)` below `depth` frames. Each bit of `path` chooses one of two call sites at its level, so that
// different paths are different stacks.
namespace with_frame_pointers {
void Descend(int depth, uint64_t path, Leaf leaf, void* argument);
}
namespace without_frame_pointers {
void Descend(int depth, uint64_t path, Leaf leaf, void* argument);
}

}  // namespace hbmprof::benchmarks

#endif  // HBMPROF_BENCHMARKS_CALL_CHAIN_H_
