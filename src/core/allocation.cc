// The functions of hbmprof/allocation.h. The command uses them without the profiler.
#include "hbmprof/allocation.h"

#include <string_view>

namespace hbmprof {

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kManaged:
      return "managed";
    case MemoryKind::kPinnedHost:
      return "pinned_host";
    case MemoryKind::kPool:
      return "pool";
    case MemoryKind::kVmm:
      return "vmm";
    case MemoryKind::kArray:
      return "array";
    case MemoryKind::kGraph:
      return "graph";
    case MemoryKind::kExecutable:
      return "executable";
    case MemoryKind::kExternal:
      return "external";
    case MemoryKind::kAlias:
      return "alias";
  }
  return "unknown";
}

std::string_view MemorySpaceName(MemorySpace space) {
  switch (space) {
    case MemorySpace::kDevice:
      return "device";
    case MemorySpace::kManaged:
      return "managed";
    case MemorySpace::kPinnedHost:
      return "pinned_host";
  }
  return "unknown";
}

}  // namespace hbmprof
