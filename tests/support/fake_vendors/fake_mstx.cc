// A double of libms_tools_ext.so, CANN's library for annotations, with the functions that allocators call. As the real
// one does, it calls InitInjectionMstx, which a tool defines, before the first call: in the library that
// MSTX_INJECTION_PATH names, else where the dynamic linker finds it. The tool gets the table of functions.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

using Function = void (*)();

// Modules: 1 annotations, 2 domains, 3 memory. The functions of a module are numbered from 1; what is null does
// nothing.
Function functions[4][6] = {};
Function* tables[4][7] = {};

int TableOf(int module, Function*** table, unsigned* size) {
  constexpr unsigned kSizes[] = {0, 5, 6, 5};
  if (module < 1 || module > 3) return 1;
  for (unsigned i = 1; i < kSizes[module]; ++i) tables[module][i] = &functions[module][i];
  *table = tables[module];
  *size = kSizes[module];
  return 0;
}

template <typename Type>
Type* Find(int module, int number) {
  static const bool is_initialized = [] {
    const char* const path = std::getenv("MSTX_INJECTION_PATH");
    void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    auto* const init =
        reinterpret_cast<int (*)(int (*)(int, Function***, unsigned*))>(dlsym(library, "InitInjectionMstx"));
    return init != nullptr && init(&TableOf) == 0;
  }();
  return is_initialized ? reinterpret_cast<Type*>(functions[module][number]) : nullptr;
}

}  // namespace

extern "C" {

void* mstxDomainCreateA(const char* name) {
  auto* const create = Find<void*(const char*)>(2, 1);
  return create == nullptr ? nullptr : create(name);
}
void* mstxMemHeapRegister(void* domain, const void* heap) {
  auto* const add = Find<void*(void*, const void*)>(3, 1);
  return add == nullptr ? nullptr : add(domain, heap);
}
void mstxMemRegionsRegister(void* domain, const void* regions) {
  if (auto* const add = Find<void(void*, const void*)>(3, 3)) add(domain, regions);
}
void mstxMemRegionsUnregister(void* domain, const void* regions) {
  if (auto* const remove = Find<void(void*, const void*)>(3, 4)) remove(domain, regions);
}
}
