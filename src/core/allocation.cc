// The functions of hbmprof/allocation.h. The command uses them without the profiler.
#include "hbmprof/allocation.h"

#include <iterator>
#include <string_view>

namespace hbmprof {
namespace {

// By MemoryKind. The first ones are also the names of the memory spaces.
constexpr std::string_view kNames[] = {"device", "managed", "pinned_host", "pool",     "vmm",
                                       "array",  "graph",   "executable",  "external", "alias"};
static_assert(std::size(kNames) == kMemoryKindCount && static_cast<int>(MemorySpace::kManaged) == 1 &&
              static_cast<int>(MemorySpace::kPinnedHost) == 2);

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  const auto number = static_cast<size_t>(kind);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

std::string_view MemorySpaceName(MemorySpace space) {
  const auto number = static_cast<size_t>(space);
  return number < kMemorySpaceCount ? kNames[number] : "unknown";
}

}  // namespace hbmprof
