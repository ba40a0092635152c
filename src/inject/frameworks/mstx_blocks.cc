// Blocks that allocators report through mstx, Ascend's library for annotations (libms_tools_ext.so): those of torch_npu
// and MindSpore. Before its first call, that library calls InitInjectionMstx with its tables of functions. A function
// that another tool has set is called, too.
//
// Both frameworks report blocks only if LD_PRELOAD has a file whose name ends with libascend_kernel_hook.so
// (ascend_kernel_hook.c), and if ASCEND_HOME_PATH names the folder of CANN with libms_tools_ext.so.
#include <dlfcn.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "hbmprof/caller.h"
#include "src/backends/calls/driver.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/linker_error.h"
#include "src/inject/frameworks/frameworks.h"

namespace hbmprof::internal {
namespace {

// --- mstx's types. ---

struct Range {
  uint32_t device;
  const void* address;
  uint64_t bytes;
};
// torch_npu sets only the third and the fourth member.
struct Regions {
  void* heap;
  int type;
  size_t count;
  const Range* ranges;
  void** handles;
};
struct Reference {
  int type;  // 0: by an address
  const void* address;
};
struct References {
  size_t count;
  const Reference* references;
};
using Function = void (*)();
// Sets the table of a module, whose elements point to the functions, and its size. Returns 0 if there is such a module.
using GetTable = int(int module, Function*** table, unsigned* size);

void* CreateDomain(const char* name);
void RegisterRegions(void* domain, const Regions* regions);
void UnregisterRegions(void* domain, const References* references);

struct Replaced {
  int module;
  unsigned number;
  Function ours;
  std::atomic<Function> of_other_tool{nullptr};
};
Replaced create_domain = {2, 1, reinterpret_cast<Function>(&CreateDomain)};
Replaced register_regions = {3, 3, reinterpret_cast<Function>(&RegisterRegions)};
Replaced unregister_regions = {3, 4, reinterpret_cast<Function>(&UnregisterRegions)};

template <typename Type>
Type* OfOtherTool(const Replaced& replaced) {
  return reinterpret_cast<Type*>(replaced.of_other_tool.load(std::memory_order_acquire));
}

// An allocator. Its domain is that of another tool, or `blocks`.
struct Allocator {
  std::string_view domain_name;
  const char* name;
  ReportedBlocks blocks;
  std::atomic<void*> domain{nullptr};
};
Allocator allocators[] = {
    {"ptaCaching", "torch_npu", ReportedBlocks("pytorch")},
    {"msleaks", "torch_npu", ReportedBlocks("pytorch")},  // its older releases
    {"mindsporeMemPool", "MindSpore", ReportedBlocks("mindspore")},
};

// Returns the allocator whose reports are used; null: none.
Allocator* AllocatorOf(const void* domain) {
  if (domain == nullptr || !uses_reports.load(std::memory_order_acquire) || IsOff()) return nullptr;
  for (Allocator& one : allocators) {
    if (one.domain.load(std::memory_order_acquire) != domain) continue;
    return one.blocks.refusal() == nullptr && IsProfilerEnabled() ? &one : nullptr;
  }
  return nullptr;
}

// Whether it is no domain of another tool.
bool IsOwn(const void* domain) {
  for (const Allocator& one : allocators) {
    if (domain == &one.blocks) return true;
  }
  return false;
}

void* CreateDomain(const char* name) {
  auto* const other = OfOtherTool<void*(const char*)>(create_domain);
  void* domain = other == nullptr ? nullptr : other(name);
  for (Allocator& one : allocators) {
    if (name == nullptr || name != one.domain_name) continue;
    if (domain == nullptr) domain = &one.blocks;
    one.domain.store(domain, std::memory_order_release);
  }
  return domain;
}

void RegisterRegions(void* domain, const Regions* regions) {
  const Caller caller = Caller::OfThisFunction();
  if (Allocator* const allocator = AllocatorOf(domain)) {
    const KeptErrno kept_errno;
    TorchHasAllocated();
    for (size_t i = 0; i < regions->count; ++i) {
      const Range& range = regions->ranges[i];
      allocator->blocks.HandedOut(caller, reinterpret_cast<uintptr_t>(range.address),
                                  static_cast<int64_t>(range.bytes));
    }
  }
  auto* const other = OfOtherTool<void(void*, const Regions*)>(register_regions);
  if (other != nullptr && !IsOwn(domain)) other(domain, regions);
}

void UnregisterRegions(void* domain, const References* references) {
  if (Allocator* const allocator = AllocatorOf(domain)) {
    const KeptErrno kept_errno;
    for (size_t i = 0; i < references->count; ++i) {
      const Reference& one = references->references[i];
      if (one.type == 0) allocator->blocks.TakenBack(reinterpret_cast<uintptr_t>(one.address), {});
    }
  }
  auto* const other = OfOtherTool<void(void*, const References*)>(unregister_regions);
  if (other != nullptr && !IsOwn(domain)) other(domain, references);
}

// Lets the tool that mstx would find without this library set its functions.
void InitOtherTool(GetTable* get_table) {
  constexpr char kName[] = "InitInjectionMstx";
  void* init = FindSymbol(RTLD_NEXT, kName);
  void* const profiler = init == nullptr ? dlopen("libprofapi.so", RTLD_LAZY | RTLD_NOLOAD) : nullptr;  // CANN's
  if (profiler != nullptr) init = FindSymbol(profiler, kName);
  if (init != nullptr) {
    reinterpret_cast<int (*)(GetTable*)>(init)(get_table);
  } else {
    ClearLinkerError();
  }
}

}  // namespace

void MstxMayHaveBlocks() {
  for (Allocator& one : allocators) one.blocks.MayHaveBlocks();
}

void AddMstxWarnings(Snapshot* snapshot) {
  const auto warn = [&](const char* name, const char* reason) {
    snapshot->warnings.push_back(absl::StrCat(name, "'s blocks are not shown, only its segments: ", reason));
  };
  bool is_used = secure_getenv("PYTORCH_NO_NPU_MEMORY_CACHING") != nullptr;
  for (const Allocator& one : allocators) {
    is_used = is_used || one.blocks.is_used() || one.blocks.refusal() != nullptr;
    if (one.blocks.refusal() != nullptr) warn(one.name, one.blocks.refusal());
  }
  if (!is_used && HasSegmentsFrom("libtorch_npu", *snapshot)) warn("torch_npu", "it reports no blocks");
}

}  // namespace hbmprof::internal

using namespace hbmprof::internal;  // NOLINT

// Called by each copy of mstx in the process.
extern "C" [[gnu::visibility("default")]] int InitInjectionMstx(GetTable* get_table) {
  Replaced* const all[] = {&create_domain, &register_regions, &unregister_regions};
  Function* entries[std::size(all)] = {};  // null: this mstx has no such function
  Function before[std::size(all)] = {};
  for (size_t i = 0; i < std::size(all); ++i) {
    Function** table = nullptr;
    unsigned size = 0;
    if (get_table(all[i]->module, &table, &size) != 0 || all[i]->number >= size) continue;
    entries[i] = table[all[i]->number];
    before[i] = *entries[i];
  }
  InitOtherTool(get_table);
  for (size_t i = 0; i < std::size(all); ++i) {
    if (entries[i] == nullptr) continue;
    if (*entries[i] != before[i]) all[i]->of_other_tool.store(*entries[i], std::memory_order_release);
    *entries[i] = all[i]->ours;
  }
  return 0;
}
