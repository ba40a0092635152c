// The part of NVTX 3's binary interface between a program and a tool that hbmprof uses, in declarations of its own. A
// test compares them with NVIDIA's header where one is found.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_NVTX_ABI_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_NVTX_ABI_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal::nvtx {

// Sets of functions that a tool may replace, and the numbers of the functions in each set.
inline constexpr int kCore = 1;
inline constexpr unsigned kRangeStartEx = 4;
inline constexpr unsigned kRangeStartA = 5;
inline constexpr unsigned kRangeEnd = 7;
inline constexpr unsigned kRangePushEx = 8;
inline constexpr unsigned kRangePushA = 9;
inline constexpr unsigned kRangePushW = 10;
inline constexpr unsigned kRangePop = 11;
inline constexpr int kCore2 = 5;
inline constexpr unsigned kDomainRangeStartEx = 2;
inline constexpr unsigned kDomainRangeEnd = 3;
inline constexpr unsigned kDomainRangePushEx = 4;
inline constexpr unsigned kDomainRangePop = 5;
inline constexpr unsigned kDomainRegisterStringA = 10;
inline constexpr unsigned kDomainCreateA = 12;
inline constexpr unsigned kDomainCreateW = 13;

using Function = void();
// The addresses of the function pointers of a module, by function number. Some are null.
using FunctionTable = Function***;

inline constexpr uint32_t kCallbacks = 1;  // the export table below
struct Callbacks {
  size_t struct_size;
  // Returns 0 if there is no such module.
  int (*get_module_function_table)(int module, FunctionTable* table, unsigned* size);
};
using GetExportTable = const void*(uint32_t table);

inline constexpr int32_t kAscii = 1;
inline constexpr int32_t kRegistered = 3;
struct EventAttributes {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  uint64_t payload;
  int32_t message_type;
  const void* message;  // kAscii: const char*; kRegistered: what a function that registers a string has returned
};

}  // namespace hbmprof::internal::nvtx

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_NVTX_ABI_H_
