// Threads that attach, detach and are refused at the same time, under the thread sanitizer. The injected library is
// not built with one, so this test is linked with what attaches, and has its own versions of the callbacks.
#include <dlfcn.h>

#include <cstdint>
#include <thread>

#include "gtest/gtest.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/deep_bind.h"
#include "src/inject/linker/report_hooks.h"

extern "C" int hbmprof_attach(const char* options);
extern "C" int hbmprof_detach();

namespace hbmprof::internal {

void PrepareTracking() {}
void TrackingStarts() {}
void MemoryEnds() {}
void DeviceEnds(DriverAdapter&, int) {}
void MemoryUnmaps(uint64_t, size_t) {}
void AllocationFailed(const FailedAllocation&, const Caller&, uint64_t) {}
void ProfilerCalled(bool) {}
bool WasLoadedLate() { return true; }
void TorchMayHaveBlocks() {}
void* TorchHookByName(const char*) { return nullptr; }
void TensorflowMayHaveBlocks() {}
void* TensorflowHookByName(const char*) { return nullptr; }

}  // namespace hbmprof::internal

namespace {

TEST(AttachThreadsTest, OneOfTwoThreadsChangesTheState) {
  ASSERT_NE(dlopen(HBMPROF_FAKE_CUDA, RTLD_NOW), nullptr) << dlerror();
  constexpr const char* kOptions = "HBMPROF_SOCKET_DIR=off\nHBMPROF_GPU_OUTPUT=off\n";
  for (int i = 0; i < 50; ++i) {
    int codes[2] = {-1, -1};
    std::thread attaches([&codes] { codes[0] = hbmprof_attach(kOptions); });
    std::thread detaches([&codes] { codes[1] = hbmprof_detach(); });
    attaches.join();
    detaches.join();
    EXPECT_EQ(codes[0], 0);
    EXPECT_EQ(codes[1] == 0 ? 0 : hbmprof_detach(), 0);
  }
}

}  // namespace
