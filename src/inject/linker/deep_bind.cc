#include "src/inject/linker/deep_bind.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "src/base/linker_error.h"
#include "src/base/message.h"
#include "src/base/protected_page.h"
#include "src/base/references.h"
#include "src/base/try_run.h"
#include "src/inject/driver_shim.h"
#include "src/inject/linker/report_hooks.h"

extern "C" {
// dynamic_linker.cc
void* hbmprof_dlsym(void* handle, const char* name);
extern void* (*hbmprof_next_dlsym)(void* handle, const char* name);
extern void* (*hbmprof_c_library_dlsym)(void* handle, const char* name);
extern void* (*hbmprof_next_dlopen)(const char* file, int flags);
}

namespace hbmprof::internal {
namespace {

// Returns the function that the reference `slot` to `name` must point to; null if the reference must stay unchanged. A
// reference is changed only if it bypasses this library. A reference to another library's dlsym stays unchanged.
void* Replacement(const link_map& module, const char* name, void* const* slot) {
  if (void* const stub = TorchHookByName(name)) return stub;
  const bool is_dlsym = std::strcmp(name, "dlsym") == 0;
  void* const wrapper = is_dlsym ? reinterpret_cast<void*>(&hbmprof_dlsym) : WrapperByName(name);
  if (wrapper == nullptr) return nullptr;
  void* const value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (is_dlsym && value == reinterpret_cast<void*>(hbmprof_c_library_dlsym)) return wrapper;
  if (!is_dlsym && WrapperOf(value) != value) return WrapperOf(value);
  // A function that the driver lacks must not be found.
  if (!is_dlsym && hbmprof_next_dlsym(const_cast<link_map*>(&module), name) == nullptr) {
    ClearLinkerError();
    return nullptr;
  }
  // The reference is not resolved yet: it points into the library's own procedure linkage table.
  Dl_info info = {};
  const bool is_own = dladdr(value, &info) != 0 && reinterpret_cast<uintptr_t>(info.dli_fbase) == module.l_addr;
  return is_own ? wrapper : nullptr;
}

void SetReferences(const link_map& module) {
  ForEachReference(module.l_addr, module.l_ld, [&module](const char* name, void** slot, bool) {
    if (void* replacement = Replacement(module, name, slot)) StoreProtected(slot, replacement);
  });
}

// Returns handles of the libraries that `module` depends on, so that none is unloaded meanwhile. The caller closes
// them.
std::vector<void*> OpenNeeded(const link_map& module) {
  const char* const names = DynamicTables(module.l_addr, module.l_ld).names;
  std::vector<void*> needed;
  for (const ElfW(Dyn)* entry = module.l_ld; names != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag != DT_NEEDED) continue;
    // The library is loaded, so dlopen finds it by its name.
    needed.reserve(needed.size() + 1);
    if (void* handle = hbmprof_next_dlopen(names + entry->d_un.d_val, RTLD_LAZY | RTLD_NOLOAD))
      needed.push_back(handle);
  }
  return needed;
}

void SetReferencesOf(void* handle, std::set<void*>& seen) {
  if (!seen.insert(handle).second) return;
  link_map* module = nullptr;
  // The driver's own references stay unchanged.
  if (dlinfo(handle, RTLD_DI_LINKMAP, &module) != 0 || IsDriver(*module)) return;
  SetReferences(*module);
  for (void* needed : OpenNeeded(*module)) {
    SetReferencesOf(needed, seen);
    dlclose(needed);
  }
}

}  // namespace

void* OpenDeepBound(const char* file, int flags) {
  void* const handle = hbmprof_next_dlopen(file, flags);
  const bool completed = handle == nullptr || TryRun([&] {
                           std::set<void*> seen;
                           SetReferencesOf(handle, seen);
                         });
  if (!completed) PrintMessage("hbmprof: the host has no memory to track a library that was loaded with RTLD_DEEPBIND");
  return handle;
}

}  // namespace hbmprof::internal
