// The part of the PJRT C API's ABI that only tests use, as in src/backends/pjrt/abi.h.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_PJRT_MORE_ABI_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_PJRT_MORE_ABI_H_

#include <cstddef>

#include "src/backends/pjrt/abi.h"

namespace hbmprof::internal::pjrt {

inline constexpr int kErrorInvalidArgument = 3;

inline constexpr Slot kPluginInitialize{3};
inline constexpr Slot kEventDestroy{5};
inline constexpr Slot kClientPlatformName{12};
inline constexpr Slot kBufferToHostBuffer{70};
inline constexpr Slot kBufferDevicePointer{76};

struct PluginInitializeArgs {
  size_t struct_size;
  void* extension_start;
};
struct ClientTextArgs {
  size_t struct_size;
  void* extension_start;
  Client* client;
  const char* text;
  size_t text_size;
};
struct BufferDevicePointerArgs {
  size_t struct_size;
  void* extension_start;
  Buffer* buffer;
  void* pointer;
};

}  // namespace hbmprof::internal::pjrt

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_PJRT_MORE_ABI_H_
