// The tables that a loaded object's dynamic section names, and the symbols that it exports, found as the dynamic linker
// finds them. Takes no lock and allocates nothing.
#ifndef HBMPROF_SRC_BASE_EXPORTS_H_
#define HBMPROF_SRC_BASE_EXPORTS_H_

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace hbmprof::internal {

// A pointer is null if the object does not have the table.
struct DynamicTables {
  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    size_t bytes = 0;
    size_t relative = 0;  // the number of those at the begin that store the address of no symbol
  };

  // `base` and `dynamic` are link_map::l_addr and l_ld; `dynamic` may be null. The object must stay loaded.
  DynamicTables(uintptr_t base, const ElfW(Dyn) * dynamic) {
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
      const ElfW(Addr) value = dynamic->d_un.d_val;
      const auto set = [&](ElfW(Sxword) tag, auto& table) {
        // The dynamic linker has made these addresses absolute, except in the kernel's object (vDSO).
        const ElfW(Addr) address = value < base ? value + base : value;
        if (dynamic->d_tag == tag) table = reinterpret_cast<std::remove_reference_t<decltype(table)>>(address);
      };
      set(DT_GNU_HASH, hash);
      set(DT_SYMTAB, symbols);
      set(DT_STRTAB, names);
      set(DT_RELA, data.first);
      set(DT_JMPREL, calls.first);
      if (dynamic->d_tag == DT_RELASZ) data.bytes = value;
      if (dynamic->d_tag == DT_RELACOUNT) data.relative = value;
      if (dynamic->d_tag == DT_PLTRELSZ) calls.bytes = value;
      if (dynamic->d_tag == DT_TEXTREL || (dynamic->d_tag == DT_FLAGS && (value & DF_TEXTREL) != 0)) {
        has_text_relocations = true;
      }
    }
  }

  const uint32_t* hash = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  Relocations data, calls;
  bool has_text_relocations = false;
};

class Exports {
 public:
  // As DynamicTables.
  Exports(uintptr_t base, const ElfW(Dyn) * dynamic) : base_(base), tables_(base, dynamic) {}

  struct Symbol {
    uintptr_t address = 0;  // 0: the object does not define it
    uintptr_t bytes = 0;
    bool is_function = false;
  };
  Symbol Find(std::string_view name) const {
    const uint32_t* const table = tables_.hash;
    if (tables_.symbols == nullptr || tables_.names == nullptr || table == nullptr || table[0] == 0) return {};
    uint32_t hash = 5381;
    for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
    const uint32_t bucket_count = table[0];
    const uint32_t first = table[1];
    const uint32_t filter_words = table[2];
    const uint32_t* const buckets = table + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* const chains = buckets + bucket_count;
    for (uint32_t i = buckets[hash % bucket_count]; i >= first; ++i) {
      const uint32_t chained = chains[i - first];
      const ElfW(Sym)& symbol = tables_.symbols[i];
      if ((chained | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && name == tables_.names + symbol.st_name) {
        return {base_ + symbol.st_value, symbol.st_size, ELF64_ST_TYPE(symbol.st_info) == STT_FUNC};
      }
      if ((chained & 1) != 0) return {};
    }
    return {};
  }

 private:
  const uintptr_t base_;
  const DynamicTables tables_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_EXPORTS_H_
