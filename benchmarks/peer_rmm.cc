// The functions that peer_bench calls as PEER_LIBRARY: RMM's memory resource over the host's malloc. peers.sh compiles
// this file, because RMM's headers need C++20.
//
// RMM_TRACKING in the environment: unset: no tracking; "stacks": RMM's tracking adaptor with a stack for each
// allocation; any other value: the adaptor without stacks.

#include <cstdlib>
#include <cstring>
#include <rmm/mr/tracking_resource_adaptor.hpp>

namespace {

struct HostMemory {
  void* allocate(cuda::stream_ref, size_t bytes, size_t alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(cuda::stream_ref, void* memory, size_t, size_t) noexcept { std::free(memory); }
  void* allocate_sync(size_t bytes, size_t) { return std::malloc(bytes); }
  void deallocate_sync(void* memory, size_t, size_t) noexcept { std::free(memory); }
  bool operator==(const HostMemory&) const { return true; }
  bool operator!=(const HostMemory&) const { return false; }
  [[maybe_unused]] friend void get_property(const HostMemory&, cuda::mr::device_accessible) noexcept {}
};

using AnyResource = cuda::mr::any_resource<cuda::mr::device_accessible>;

AnyResource MakeResource() {
  const char* tracking = std::getenv("RMM_TRACKING");
  if (tracking == nullptr) return AnyResource(HostMemory());
  const bool has_stacks = std::strcmp(tracking, "stacks") == 0;
  return AnyResource(rmm::mr::tracking_resource_adaptor(AnyResource(HostMemory()), has_stacks));
}

// Never destroyed: the adaptor would print what is live at exit.
AnyResource& resource = *new AnyResource(MakeResource());

}  // namespace

extern "C" [[gnu::visibility("default")]] void* peer_allocate(size_t bytes) {
  return resource.allocate(cuda::stream_ref(cudaStream_t{}), bytes, 16);
}
extern "C" [[gnu::visibility("default")]] void peer_free(void* memory, size_t bytes) {
  resource.deallocate(cuda::stream_ref(cudaStream_t{}), memory, bytes, 16);
}
