// Measures a block of PyTorch's real caching allocator on the substitute driver: the processor nanoseconds of a pair of
// allocation and free, each 17 calls deep. peers.sh compiles this file, because PyTorch's headers need C++20.
//
// usage: peer_torch SECONDS alone|history|stacks
// history: with PyTorch's own history of events. stacks: each with a stack, by backtrace() of glibc; PyTorch's own
// collectors of stacks are in libraries that are not at hand here.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif
#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;

struct Stack : c10::GatheredContext {
  void* frames[64];
  int count = backtrace(frames, 64);
};

std::shared_ptr<c10::GatheredContext> Gather() { return std::make_shared<Stack>(); }

// Frees *block and allocates another one, `depth` calls below.
[[gnu::noinline]] void Replace(void** block, size_t bytes, int depth) {
  if (depth > 0) {
    Replace(block, bytes, depth - 1);
  } else {
    if (*block != nullptr) pytorch::raw_delete(*block);
    *block = pytorch::raw_alloc(bytes);
  }
  asm volatile("" ::: "memory");  // no tail call
}

double Now() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const double seconds = std::atof(argv[1]);
  const std::string how = argv[2];
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  pytorch::init(1);
  if (how != "alone") {
    const bool has_stacks = how == "stacks";
    pytorch::recordHistory(true, has_stacks ? &Gather : nullptr, 100000,
                           has_stacks ? pytorch::RecordContext::ALL : pytorch::RecordContext::NEVER, true, {});
  }
  std::minstd_rand random(1);
  std::vector<void*> blocks(1000);
  const auto replace = [&](int count) {
    for (int i = 0; i < count; ++i) Replace(&blocks[random() % blocks.size()], 512 + random() % 100000, 15);
  };
  replace(10000);
  const double start = Now();
  double now = start;
  long pairs = 0;
  for (; now < start + seconds; now = Now()) {
    replace(1000);
    pairs += 1000;
  }
  std::printf("%.1f\n", (now - start) / static_cast<double>(pairs) * 1e9);
  std::fflush(stdout);
  std::_Exit(0);
}
