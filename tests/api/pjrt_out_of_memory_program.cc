// A program that runs out of memory on the fake PJRT plugin's devices of 64 MiB. The modes are those of
// cuda_out_of_memory_program.cc. Its last word is "done" if each failed call returned the plugin's own error.
#include <cstdint>
#include <cstdio>
#include <string>

#include "hbmprof/hbmprof.h"
#include "hbmprof/pjrt.h"
#include "tests/api/out_of_memory_programs.h"
#include "tests/support/fake_pjrt/calls.h"
#include "tests/support/fake_pjrt/fake_pjrt.h"

namespace {

namespace abi = hbmprof::internal::pjrt;
using hbmprof_test::PjrtCalls;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kCapacity = 64 * kMiB;

const abi::Api* Wrapped(const abi::Api* api) {
  return reinterpret_cast<const abi::Api*>(hbmprof::pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(api)));
}

[[gnu::noinline]] void GrowCache(const PjrtCalls& calls, abi::Client* client, int64_t bytes) {
  CHECK_THAT(calls.Uninitialized(client, bytes) != nullptr);
  asm volatile("" ::: "memory");  // no tail call
}

void Fail(const PjrtCalls& calls, abi::Client* client, int64_t bytes) {
  int code = 0;
  CHECK_THAT(calls.Uninitialized(client, bytes, calls.Device(client, 0), &code) == nullptr);
  CHECK_THAT(code == abi::kErrorResourceExhausted);
}

void FailToPin(const PjrtCalls& calls, abi::Client* client, size_t bytes) {
  fake_pjrt_fail_next(abi::kDmaMap, abi::kErrorResourceExhausted);
  static char memory[1];
  abi::DmaMapArgs args{};
  args.client = client;
  args.data = memory;
  args.size = bytes;
  CHECK_THAT(calls.Call(abi::kDmaMap, &args) == abi::kErrorResourceExhausted);
}

void FailFor(const std::string& cause, const PjrtCalls& calls, abi::Client* client) {
  const PjrtCalls unrecorded(fake_pjrt_table(kFakePjrtNewest));
  if (cause == "too_large") return Fail(calls, client, 2 * kCapacity);
  GrowCache(calls, client, kCapacity / 16);
  if (cause == "full") {
    GrowCache(calls, client, kCapacity / 2);
  } else if (cause == "fragmented") {
    fake_pjrt_limit_requests(kCapacity / 8, /*is_reported=*/true);
  } else if (cause == "limit") {
    fake_pjrt_limit_requests(kCapacity / 8, /*is_reported=*/false);
  } else if (cause == "unaccounted") {
    CHECK_THAT(unrecorded.Uninitialized(client, kCapacity / 2) != nullptr);
  } else if (cause == "idle_pool") {
    // The program's own pool, in memory that it allocates before it wraps the plugin.
    CHECK_THAT(unrecorded.Uninitialized(client, kCapacity / 2) != nullptr);
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    const hbmprof::Pool pool = {profiler.Device("FAKE_0"), profiler.Allocator("cache")};
    CHECK_THAT(profiler.RecordSegment(pool, hbmprof::BufferId(uint64_t{1} << 40), kCapacity / 2));
  } else if (cause == "unknown") {
    fake_pjrt_hide_memory_stats();
    return Fail(calls, client, 2 * kCapacity);
  } else if (cause == "control_group") {
    return FailToPin(calls, client, 256 * kMiB);
  } else if (cause == "locked_memory") {
    const oom_program::LockedMemoryLimit limit(4 * kMiB);
    return FailToPin(calls, client, 8 * kMiB);
  } else if (cause == "addresses") {
    oom_program::LimitAddresses(64 * kMiB);
    return FailToPin(calls, client, 512 * kMiB);
  }
  Fail(calls, client, 3 * kCapacity / 4);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK_THAT(argc == 3);
  const std::string mode = argv[1];
  fake_pjrt_reset(kCapacity);
  const PjrtCalls calls(Wrapped(fake_pjrt_table(kFakePjrtNewest)));
  auto* const client = calls.CreateClient();
  if (mode == "verdict") {
    FailFor(argv[2], calls, client);
  } else {
    GrowCache(calls, client, 3 * kCapacity / 4);
    oom_program::FailAs(mode, argv[2], [&] { Fail(calls, client, kCapacity / 2); });
  }
  std::puts("done");
  return 0;
}
