// What a contract suite needs to know of the DeviceAllocator it tests. Each allocator describes itself in one
// ContractCase and instantiates the suites with it:
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

// One allocator with all that it stands on. Nothing is allocated from it yet, and nobody else uses it.
class ContractSubject {
 public:
  virtual ~ContractSubject() = default;
  virtual DeviceAllocator& allocator() = 0;
  // The streams 0 and 1 of the test: two distinct ones of the allocator's device.
  virtual StreamId stream(int index) = 0;
  // Waits until the frees queued on `stream` are complete.
  virtual void Synchronize(StreamId stream) = 0;
};

// A subject whose allocator is tracked, in a profiler of its own.
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
  // Why the allocator cannot be tested on this machine; empty, or giving an empty text: it can.
  std::function<std::string()> unavailable;
  // All the bytes that a new subject can hand out, as one buffer if asked; at least 1 MiB. 0: too many for a test to
  // fill; then what needs a full device is left out.
  size_t capacity = 0;
  // Whether a freed address is handed out again to the next request of the same size.
  bool reuses_addresses_at_once = false;
};

inline std::string ContractCaseName(const ::testing::TestParamInfo<ContractCase>& info) { return info.param.name; }
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

// The fixture of every contract suite: a new subject per test, or a skip that says why.
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
