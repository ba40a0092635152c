// The contract suites on the simulated device, bare and tracked.
#include <memory>

#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/simulated_device.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"

namespace hbmprof {
namespace {

constexpr size_t kCapacity = size_t{4} << 20;

class SimulatedSubject : public ContractSubject {
 public:
  SimulatedSubject() {
    SimulatedDevice::Options options;
    options.capacity = kCapacity;
    device_ = SimulatedDevice::Create(options).value();
  }
  DeviceAllocator& allocator() override { return *device_; }
  StreamId stream(int index) override { return index; }
  void Synchronize(StreamId stream) override { device_->Synchronize(stream); }

 private:
  std::unique_ptr<SimulatedDevice> device_;
};

template <typename Subject>
ContractCase Case(const char* name) {
  ContractCase c;
  c.name = name;
  c.make = [] { return std::make_unique<Subject>(); };
  c.capacity = kCapacity;
  c.reuses_addresses_at_once = true;
  return c;
}

const auto kCases = ::testing::Values(Case<SimulatedSubject>("SimulatedDevice"),
                                      Case<TrackedSubject<SimulatedSubject>>("TrackedSimulatedDevice"));
INSTANTIATE_TEST_SUITE_P(Simulated, DeviceAllocatorContract, kCases, ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, TrackingContract, kCases, ContractCaseName);

}  // namespace
}  // namespace hbmprof
