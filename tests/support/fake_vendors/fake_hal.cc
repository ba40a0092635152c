// A substitute for Ascend's libascend_hal.so without a device, as far as the tests call it.
#include "src/backends/ascend/hal_driver.h"
#include "tests/support/fake_vendors/fake_memory.h"

namespace hbmprof::internal::ascend_driver {
namespace {

constexpr int kInvalidValue = 3;

using fake_vendors::Memory;

// `device`: the memory ends with it; -1: with none.
int Make(uint64_t* made, size_t bytes, bool is_on_device, int device) {
  *made = Memory::Instance().Allocate(bytes, is_on_device, device);
  return *made == 0 ? kErrorOutOfMemory : 0;
}
int End(uint64_t id) { return id == 0 || Memory::Instance().Free(id) ? 0 : kInvalidValue; }

}  // namespace

extern "C" {

int halMemAlloc(void** ptr, Flags bytes, Flags flags) {
  uint64_t made = 0;
  const Flags kind = flags >> 10 & 15;
  const bool is_devices = kind == 1 || kind == 3;
  const int result = Make(&made, bytes, is_devices || kind == 7, is_devices ? static_cast<int>(flags & 1023) : -1);
  if (result == 0) *ptr = reinterpret_cast<void*>(made);
  return result;
}
int halMemFree(void* ptr) { return End(reinterpret_cast<uintptr_t>(ptr)); }
int halHostRegister(void*, Flags, unsigned, unsigned, void**) { return 0; }
int halHostUnregister(void*, unsigned) { return 0; }
int halHostUnregisterEx(void*, unsigned, unsigned) { return 0; }
int halMemCreate(Handle* handle, size_t bytes, const MemProperties* properties, uint64_t) {
  uint64_t made = 0;
  const bool is_on_device = properties->side == 1;
  const int result = Make(&made, bytes, is_on_device, is_on_device ? static_cast<int>(properties->device) : -1);
  *handle = made;
  return result;
}
int halMemRelease(Handle handle) { return End(handle); }
// Reserved addresses stay.
int halMemAddressReserve(void** ptr, size_t bytes, size_t, void*, uint64_t) {
  *ptr = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *ptr == MAP_FAILED ? kErrorOutOfMemory : 0;
}
int halMemAddressFree(void*) { return 0; }
int halMemMap(Address, size_t, size_t, Handle, uint64_t) { return 0; }
int halMemMapNoAccess(Address, size_t, size_t, Handle, uint64_t) { return 0; }
int halMemUnmap(Address) { return 0; }
// The memory that is imported takes nothing of this device.
int halMemImportFromShareableHandleV2(int, void*, uint32_t, Handle* handle) {
  uint64_t made = 0;
  const int result = Make(&made, 0, false, -1);
  *handle = made;
  return result;
}
// The type 2 closes what the host has of the device, before a snapshot of the process: the device keeps its memory.
int halDeviceClose(uint32_t device, const uint32_t* type) {
  if (type == nullptr || *type != 2) Memory::Instance().FreeAllOf(static_cast<int>(device));
  return 0;
}
int halMemAgentClose(uint32_t device, uint32_t) { return halDeviceClose(device, nullptr); }
// All pages are huge ones.
int halMemGetInfo(unsigned, unsigned, MemInfo* info) {
  *info = {};
  info->huge_total = fake_vendors::Capacity();
  info->huge_free = info->huge_total - Memory::Instance().used();
  return 0;
}

}  // extern "C"
}  // namespace hbmprof::internal::ascend_driver
