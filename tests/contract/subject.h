// The description of a DeviceAllocator for the contract suites that test it. Each allocator has one ContractCase and
// instantiates the suites with it:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, DeviceAllocatorContract, ::testing::Values(MyCase()), ContractCaseName);
//
// Not in this file: the suites (device_allocator_contract.h, tracking_contract.h).
#ifndef HBMPROF_TESTS_CONTRACT_SUBJECT_H_
#define HBMPROF_TESTS_CONTRACT_SUBJECT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/profiler.h"

namespace hbmprof {

// One allocator and the objects that it needs. Nothing is allocated from it yet, and no other code uses it.
class ContractSubject {
 public:
  virtual ~ContractSubject() = default;
  virtual DeviceAllocator& allocator() = 0;
  // The streams 0 and 1 of the test: two distinct ones of the allocator's device.
  virtual StreamId stream(int index) = 0;
  // Waits until the frees queued on `stream` are complete.
  virtual void Synchronize(StreamId stream) = 0;
};

// A subject whose allocator is tracked, in its own profiler.
template <typename Subject>
class TrackedSubject : public Subject {
 public:
  DeviceAllocator& allocator() override { return tracker_; }

 private:
  Profiler profiler_;
  TrackingAllocator tracker_{Subject::allocator(), "tracked", profiler_};
};

struct ContractCase {
  std::string name;  // letters and digits
  std::function<std::unique_ptr<ContractSubject>()> make;
  // Returns the reason why the allocator cannot be tested on this machine. If it is not set or returns "", it can.
  std::function<std::string()> unavailable;
  // The bytes that can be allocated from a new subject, also as one buffer; at least 1 MiB. 0: too many for a test to
  // fill. Then the tests that need a full device are left out.
  size_t capacity = 0;
  // True if the next request of the same size gets the freed address.
  bool reuses_addresses_at_once = false;
};

inline std::string ContractCaseName(const ::testing::TestParamInfo<ContractCase>& info) { return info.param.name; }
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

// The fixture of every contract suite: makes a new subject for each test, or skips the test with the reason.
class ContractTest : public ::testing::TestWithParam<ContractCase> {
 protected:
  void SetUp() override {
    const std::string why = GetParam().unavailable ? GetParam().unavailable() : "";
    if (!why.empty()) GTEST_SKIP() << GetParam().name << ": " << why;
    subject_ = GetParam().make();
    ASSERT_NE(subject_, nullptr);
  }

  DeviceAllocator& subject_allocator() { return subject_->allocator(); }
  StreamId stream(int index) { return subject_->stream(index); }
  void SynchronizeAll() {
    for (int i : {0, 1}) subject_->Synchronize(stream(i));
  }

 private:
  std::unique_ptr<ContractSubject> subject_;
};

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_CONTRACT_SUBJECT_H_
