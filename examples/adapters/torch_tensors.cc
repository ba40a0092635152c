// Memory of PyTorch's CUDA caching allocator, by the functions that requested it. One of five functions keeps what it
// should free: `hbmprof diff` of the two profiles names it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <hbmprof/adapters/torch.h>
#include <hbmprof/hbmprof.h>

#include <cstdio>
#include <vector>

// The storage of a tensor, as at::empty makes it. Inlined, because it stands for a function of libtorch.
[[gnu::always_inline]] inline c10::DataPtr Storage(size_t bytes) {
  return c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}

// The functions of the program, by which the profile shows the memory.
[[gnu::noinline]] c10::DataPtr LoadWeights() { return Storage(3000000); }
[[gnu::noinline]] c10::DataPtr EmbedPrompt() { return Storage(40000); }
[[gnu::noinline]] c10::DataPtr GrowCache() { return Storage(100000); }
[[gnu::noinline]] c10::DataPtr TakeWorkspace() { return Storage(500000); }
[[gnu::noinline]] c10::DataPtr CopyOutput() { return Storage(4000); }

void Serve(int requests, std::vector<c10::DataPtr>& cache) {
  for (int request = 0; request < requests; ++request) {
    const c10::DataPtr prompt = EmbedPrompt();
    const c10::DataPtr workspace = TakeWorkspace();
    cache.push_back(GrowCache());  // the leak: nothing removes it
    const c10::DataPtr output = CopyOutput();
  }
}

// ATen passes this function when a program first uses CUDA. This example has only the allocator of libtorch.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

int main(int argc, char** argv) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
  if (const absl::Status tracked = hbmprof::adapters::TrackTorchAllocator(); !tracked.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tracked.message()).c_str());
    return 1;
  }

  const c10::DataPtr weights = LoadWeights();
  std::vector<c10::DataPtr> cache;
  Serve(2, cache);
  if (!hbmprof::save_device_memory_profile(argc > 1 ? argv[1] : "before.pb.gz").ok()) return 1;
  Serve(7, cache);
  if (!hbmprof::save_device_memory_profile(argc > 2 ? argv[2] : "after.pb.gz").ok()) return 1;

  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  std::printf("requested %lld B, allocated %lld B, reserved %lld B\n",
              static_cast<long long>(stats.requested_bytes[0].current),
              static_cast<long long>(stats.allocated_bytes[0].current),
              static_cast<long long>(stats.reserved_bytes[0].current));
}
