// The symbols that a loaded object exports, found by the tables that the dynamic linker itself uses. Takes no lock and
// allocates nothing.
#ifndef HBMPROF_SRC_BASE_EXPORTS_H_
#define HBMPROF_SRC_BASE_EXPORTS_H_

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <string_view>

namespace hbmprof::internal {

class Exports {
 public:
  // `base` and `dynamic` are link_map::l_addr and l_ld; `dynamic` may be null. The object must stay loaded.
  Exports(uintptr_t base, const ElfW(Dyn) * dynamic) : base_(base) {
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
      // The dynamic linker has made these addresses absolute, except in the kernel's object (vDSO).
      const ElfW(Addr) value = dynamic->d_un.d_ptr;
      const ElfW(Addr) address = value < base ? value + base : value;
      if (dynamic->d_tag == DT_GNU_HASH) hash_ = reinterpret_cast<const uint32_t*>(address);
      if (dynamic->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(address);
      if (dynamic->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(address);
    }
  }

  struct Symbol {
    uintptr_t address = 0;  // 0: the object does not define it
    uintptr_t bytes = 0;
    bool is_function = false;
  };
  Symbol Find(std::string_view name) const {
    if (symbols_ == nullptr || names_ == nullptr || hash_ == nullptr || hash_[0] == 0) return {};
    uint32_t hash = 5381;
    for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
    const uint32_t bucket_count = hash_[0];
    const uint32_t first = hash_[1];
    const uint32_t filter_words = hash_[2];
    const uint32_t* const buckets = hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* const chains = buckets + bucket_count;
    for (uint32_t i = buckets[hash % bucket_count]; i >= first; ++i) {
      const uint32_t chained = chains[i - first];
      const ElfW(Sym)& symbol = symbols_[i];
      if ((chained | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && name == names_ + symbol.st_name) {
        return {base_ + symbol.st_value, symbol.st_size, ELF64_ST_TYPE(symbol.st_info) == STT_FUNC};
      }
      if ((chained & 1) != 0) return {};
    }
    return {};
  }

 private:
  const uintptr_t base_;
  const uint32_t* hash_ = nullptr;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_EXPORTS_H_
