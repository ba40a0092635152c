// A program with NVTX ranges of the name "step", which does not use hbmprof. argv[1] names a case of
// capture_range_test.
#include <nvtx3/nvToolsExt.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/inject/driver_calls.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls

namespace {

constexpr size_t kMiB = 1 << 20;

void UseDevice() {
  Handle context = nullptr;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
}

void Allocate(size_t bytes) {
  CUdeviceptr ptr = 0;
  if (cuMemAlloc_v2(&ptr, bytes) != kSuccess) std::fprintf(stderr, "no memory\n");
}

// Ranges that threads push.
void Push() {
  nvtxRangePushA("step");  // before the first call of the driver
  UseDevice();
  Allocate(1 * kMiB);
  nvtxRangePushA("step");  // in itself
  nvtxRangePop();
  std::thread([] {
    UseDevice();
    nvtxRangePushA("step");  // in another thread: the end of this one does not end the first
    nvtxRangePop();
  }).join();
  Allocate(2 * kMiB);
  nvtxRangePop();
  nvtxRangePushA("other");
  Allocate(4 * kMiB);
  nvtxRangePop();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = "step";
  nvtxDomainRangePushEx(domain, &event);
  Allocate(8 * kMiB);
  nvtxDomainRangePop(domain);
  Allocate(16 * kMiB);
  nvtxRangePop();  // there is none
}

// Ranges that belong to no thread.
void Start() {
  UseDevice();
  const nvtxRangeId_t other = nvtxRangeStartA("other");
  const nvtxRangeId_t first = nvtxRangeStartA("step");
  const nvtxRangeId_t second = nvtxRangeStartA("step");
  Allocate(1 * kMiB);
  nvtxRangeEnd(second);
  nvtxRangeEnd(other);
  Allocate(2 * kMiB);
  std::thread([first] {
    UseDevice();
    nvtxRangeEnd(first);
  }).join();
  Allocate(4 * kMiB);
  nvtxRangeEnd(first);
  nvtxRangePushA("step");  // never ends
  Allocate(8 * kMiB);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "push") Push();
  if (name == "start") Start();
}
