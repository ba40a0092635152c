// A user's test program, whose tests exceed the limits of LeakCheck and PeakCheck. junit_test.py reads its report.
#include <memory>

#include "gtest/gtest.h"
#include "hbmprof/leak_check.h"
#include "hbmprof/simulated_device.h"

namespace {

class CacheTest : public testing::Test {
 protected:
  [[gnu::noinline]] void* InsertPage(size_t bytes) {
    void* page = allocator_.Allocate(bytes).value();
    asm volatile("" ::: "memory");  // no jump instead of the call
    return page;
  }
  std::unique_ptr<hbmprof::SimulatedDevice> device_ = hbmprof::SimulatedDevice::Create({}).value();
  hbmprof::TrackingAllocator allocator_{*device_, "pages"};
};

TEST_F(CacheTest, StaysSmall) {
  const hbmprof::PeakCheck peak(64 << 10);
  EXPECT_TRUE(allocator_.Free(InsertPage(100 << 10)).ok());
}

TEST_F(CacheTest, FreesItsPages) {
  const hbmprof::LeakCheck leaks;
  InsertPage(4096);
}

TEST_F(CacheTest, IsWithinItsLimits) {
  const hbmprof::LeakCheck leaks;
  const hbmprof::PeakCheck peak(64 << 10);
  EXPECT_TRUE(allocator_.Free(InsertPage(64 << 10)).ok());
}

}  // namespace
