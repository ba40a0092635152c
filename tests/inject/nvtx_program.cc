// A program that uses NVTX ranges, and does not use hbmprof. Its modes are the cases of nvtx_test.
#include <nvtx3/nvToolsExt.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "src/inject/frameworks/nvtx_abi.h"
#include "tests/inject/driver_calls.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls
namespace abi = hbmprof::internal::nvtx;

// hbmprof's declarations agree with those of NVIDIA.
static_assert(abi::kCore == NVTX_CB_MODULE_CORE && abi::kCore2 == NVTX_CB_MODULE_CORE2);
static_assert(abi::kRangeStartEx == NVTX_CBID_CORE_RangeStartEx && abi::kRangeStartA == NVTX_CBID_CORE_RangeStartA &&
              abi::kRangeEnd == NVTX_CBID_CORE_RangeEnd);
static_assert(abi::kDomainRangeStartEx == NVTX_CBID_CORE2_DomainRangeStartEx &&
              abi::kDomainRangeEnd == NVTX_CBID_CORE2_DomainRangeEnd);
static_assert(abi::kRangePushEx == NVTX_CBID_CORE_RangePushEx && abi::kRangePushA == NVTX_CBID_CORE_RangePushA);
static_assert(abi::kRangePushW == NVTX_CBID_CORE_RangePushW && abi::kRangePop == NVTX_CBID_CORE_RangePop);
static_assert(abi::kDomainRangePushEx == NVTX_CBID_CORE2_DomainRangePushEx &&
              abi::kDomainRangePop == NVTX_CBID_CORE2_DomainRangePop);
static_assert(abi::kDomainRegisterStringA == NVTX_CBID_CORE2_DomainRegisterStringA &&
              abi::kDomainCreateA == NVTX_CBID_CORE2_DomainCreateA &&
              abi::kDomainCreateW == NVTX_CBID_CORE2_DomainCreateW);
static_assert(abi::kCallbacks == NVTX_ETID_CALLBACKS && sizeof(abi::Callbacks) == sizeof(NvtxExportTableCallbacks));
static_assert(abi::kAscii == NVTX_MESSAGE_TYPE_ASCII && abi::kRegistered == NVTX_MESSAGE_TYPE_REGISTERED);
static_assert(sizeof(abi::EventAttributes) == sizeof(nvtxEventAttributes_t));
static_assert(offsetof(abi::EventAttributes, message_type) == offsetof(nvtxEventAttributes_t, messageType) &&
              offsetof(abi::EventAttributes, message) == offsetof(nvtxEventAttributes_t, message));

namespace {

constexpr size_t kKiB = 1024;

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

nvtxEventAttributes_t Event(nvtxMessageType_t type) {
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = type;
  return event;
}

}  // namespace

int main() {
  UseDevice();
  Allocate(kKiB);  // in no range
  nvtxRangePushA("step");
  Allocate(2 * kKiB);
  {
    nvtxRangePushA("aten::add, seq = 17, op_id = 4");
    Allocate(4 * kKiB);
    std::thread([] {
      UseDevice();
      Allocate(8 * kKiB);  // another thread is in no range
    }).join();
    nvtxRangePop();
  }
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  nvtxEventAttributes_t event = Event(NVTX_MESSAGE_TYPE_REGISTERED);
  event.message.registered = nvtxDomainRegisterStringA(domain, "gemm");
  const int level = nvtxDomainRangePushEx(domain, &event);
  Allocate(16 * kKiB);
  nvtxRangePop();  // the outer range, of another domain, ends first
  Allocate(32 * kKiB);
  const int ended = nvtxDomainRangePop(domain);
  Allocate(64 * kKiB);  // in no range again
  nvtxEventAttributes_t wide = Event(NVTX_MESSAGE_TYPE_UNICODE);
  wide.message.unicode = L"wide";
  nvtxRangePushEx(&wide);
  nvtxRangePushW(L"wide");
  Allocate(128 * kKiB);
  nvtxRangePop();
  nvtxRangePop();
  for (int i = 0; i < 100; ++i) nvtxRangePushA("deep");
  for (int i = 0; i < 100; ++i) nvtxRangePop();
  Allocate(256 * kKiB);
  std::printf("level %d ended %d extra %d\n", level, ended, nvtxRangePop() < 0 ? 1 : 0);
}
