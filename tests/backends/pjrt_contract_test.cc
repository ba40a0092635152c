// The contract suites on the fake PJRT plugin through a wrapped table: allocations work as with the plugin's own table.
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/pjrt.h"
#include "hbmprof/profiler.h"
#include "src/base/mutex.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"
#include "tests/support/fake_pjrt/calls.h"
#include "tests/support/fake_pjrt/fake_pjrt.h"

namespace hbmprof {
namespace {

namespace abi = internal::pjrt;

constexpr size_t kCapacity = size_t{4} << 20;

// Allocates uninitialized buffers of bytes. A buffer is identified by its device address.
class PjrtAllocator : public DeviceAllocator {
 public:
  explicit PjrtAllocator(const abi::Api* api) : calls_(api), client_(calls_.CreateClient()) {}
  ~PjrtAllocator() override { EXPECT_EQ(calls_.DestroyClient(client_), 0); }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    // Dimensions are signed.
    if (bytes > kCapacity * 4) return absl::ResourceExhaustedError("more than any device has");
    int code = 0;
    abi::Buffer* const buffer = calls_.Uninitialized(client_, static_cast<int64_t>(bytes), nullptr, &code);
    if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), "the plugin has no memory");
    abi::BufferDevicePointerArgs where{};
    where.buffer = buffer;
    calls_.Call(abi::kBufferDevicePointer, &where);
    internal::MutexLock lock(mutex_);
    buffers_[where.pointer] = buffer;
    return where.pointer;
  }
  absl::Status Free(void* ptr) override {
    if (ptr == nullptr) return absl::OkStatus();
    abi::Buffer* buffer = nullptr;
    {
      internal::MutexLock lock(mutex_);
      const auto found = buffers_.find(ptr);
      if (found == buffers_.end()) return absl::InvalidArgumentError("no live buffer of this plugin");
      buffer = found->second;
      buffers_.erase(found);
    }
    return calls_.Destroy(buffer) == 0 ? absl::OkStatus() : absl::InternalError("the plugin refused");
  }
  std::string device_name() const override { return "FAKE_0"; }

 private:
  const hbmprof_test::PjrtCalls calls_;
  abi::Client* const client_;
  internal::Mutex mutex_;
  std::map<void*, abi::Buffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

class PjrtSubject : public ContractSubject {
 public:
  PjrtSubject() { fake_pjrt_reset(kCapacity); }
  ~PjrtSubject() override {
    // The records that the wrapped table made of all calls of the suite.
    Profiler& profiler = Profiler::Default();
    EXPECT_EQ(profiler.Stats(profiler.Device("FAKE_0")).bytes_in_use, fake_pjrt_device_bytes(0));
    EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
  }
  DeviceAllocator& allocator() override { return allocator_; }
  StreamId stream(int index) override { return static_cast<StreamId>(index); }
  void Synchronize(StreamId) override {}

 private:
  static const abi::Api* Wrapped() {
    const abi::Api* const api = fake_pjrt_table(kFakePjrtNewest);
    return reinterpret_cast<const abi::Api*>(pjrt::Wrap(reinterpret_cast<const PJRT_Api*>(api)));
  }
  PjrtAllocator allocator_{Wrapped()};
};

ContractCase Case() {
  setenv("HBMPROF_OOM_OUTPUT", "off", 1);  // a full device is part of the suite
  ContractCase c;
  c.name = "WrappedPjrtPlugin";
  c.make = [] { return std::make_unique<PjrtSubject>(); };
  c.capacity = kCapacity;
  return c;
}

INSTANTIATE_TEST_SUITE_P(Pjrt, DeviceAllocatorContract, ::testing::Values(Case()), ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Pjrt, TrackingContract, ::testing::Values(Case()), ContractCaseName);

}  // namespace
}  // namespace hbmprof
