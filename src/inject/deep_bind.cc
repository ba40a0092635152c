#include "src/inject/deep_bind.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "src/backends/cuda/driver_queries.h"
#include "src/backends/cuda/driver_shim.h"

extern "C" void* hbmprof_dlsym(void* handle, const char* name);  // dlsym.cc

namespace hbmprof::internal {
namespace {

struct Module {
  uintptr_t base = 0;
  std::string path;
  const ElfW(Dyn) * dynamic = nullptr;
};

std::vector<Module> LoadedModules() {
  std::vector<Module> modules;
  const auto add = [](dl_phdr_info* info, size_t, void* argument) {
    Module module;
    module.base = info->dlpi_addr;
    module.path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
      module.dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
    static_cast<std::vector<Module>*>(argument)->push_back(module);
    return 0;
  };
  dl_iterate_phdr(add, &modules);
  return modules;
}

// What a reference of this name should lead to; null: leave it as it is.
void* Replacement(const char* name) {
  return std::strcmp(name, "dlsym") == 0 ? reinterpret_cast<void*>(&hbmprof_dlsym) : CudaWrapperByName(name);
}

// The page may have been made read-only after relocation.
void Write(void** place, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(place) & ~(page_size - 1));
  if (mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

void SetReferences(const Module& module) {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    size_t bytes = 0;
  } data, calls;
  for (const ElfW(Dyn)* entry = module.dynamic; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    // The dynamic linker has made these addresses absolute.
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        break;
      case DT_RELA:
        data.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_RELASZ:
        data.bytes = entry->d_un.d_val;
        break;
      case DT_JMPREL:
        calls.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        calls.bytes = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (symbols == nullptr || names == nullptr) return;
  for (const Relocations& relocations : {data, calls}) {
    for (size_t i = 0; relocations.first != nullptr && i < relocations.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& relocation = relocations.first[i];
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) continue;
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(relocation.r_info)];
      // Its own definition stays its own.
      if (symbol.st_shndx != SHN_UNDEF || symbol.st_name == 0) continue;
      if (void* replacement = Replacement(names + symbol.st_name)) {
        Write(reinterpret_cast<void**>(module.base + relocation.r_offset), replacement);
      }
    }
  }
}

// The driver's own libraries refer to nothing of ours.
bool IsDriver(const Module& module) { return module.path.find("/libcuda.so") != std::string::npos; }

}  // namespace

void* OpenDeepBound(const char* file, int flags, void* (*real_dlopen)(const char*, int)) {
  std::set<std::string> before;
  for (const Module& module : LoadedModules()) before.insert(module.path);
  void* handle = real_dlopen(file, flags);
  if (handle == nullptr) return nullptr;
  for (const Module& module : LoadedModules()) {
    if (before.count(module.path) == 0 && !IsDriver(module)) SetReferences(module);
  }
  return handle;
}

}  // namespace hbmprof::internal
