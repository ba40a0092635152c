// The references of a loaded object to functions of other objects: the pointers through which its code calls them.
// Header only, because libraries without the rest of hbmprof use it.
#ifndef HBMPROF_SRC_BASE_REFERENCES_H_
#define HBMPROF_SRC_BASE_REFERENCES_H_

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

#include "src/base/exports.h"

namespace hbmprof::internal {

// The types of relocations that store the address of a symbol.
#if defined(__aarch64__)
inline constexpr uint32_t kCallSlot = R_AARCH64_JUMP_SLOT;
inline constexpr uint32_t kDataSlot = R_AARCH64_GLOB_DAT;
inline constexpr uint32_t kAddress = R_AARCH64_ABS64;
#else
inline constexpr uint32_t kCallSlot = R_X86_64_JUMP_SLOT;
inline constexpr uint32_t kDataSlot = R_X86_64_GLOB_DAT;
inline constexpr uint32_t kAddress = R_X86_64_64;
#endif

// Calls visit(name, slot, is_weak) for each reference of the object to a symbol that other objects define (`with_own`:
// also to its own symbols, which others could interpose), except references that can lie in its code (text
// relocations). `slot` points to the reference; its page can be read-only. `base` and `dynamic` are link_map::l_addr
// and l_ld. The object must stay loaded during the call. Allocates nothing.
template <typename Visit>
void ForEachReference(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const Visit& visit, bool with_own = false) {
  const DynamicTables tables(base, dynamic);
  if (tables.symbols == nullptr || tables.names == nullptr) return;
  for (const DynamicTables::Relocations& relocations : {tables.data, tables.calls}) {
    const size_t count = relocations.first == nullptr ? 0 : relocations.bytes / sizeof(ElfW(Rela));
    for (size_t i = relocations.relative; i < count; ++i) {
      const ElfW(Rela)& relocation = relocations.first[i];
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type != kCallSlot && type != kDataSlot && (type != kAddress || tables.has_text_relocations)) continue;
      const ElfW(Sym)& symbol = tables.symbols[ELF64_R_SYM(relocation.r_info)];
      if ((symbol.st_shndx != SHN_UNDEF && !with_own) || symbol.st_name == 0) continue;
      visit(tables.names + symbol.st_name, reinterpret_cast<void**>(base + relocation.r_offset),
            ELF64_ST_BIND(symbol.st_info) == STB_WEAK);
    }
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_REFERENCES_H_
