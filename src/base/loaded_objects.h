// The list of the dynamic linker, and the program headers of the objects in it.
#ifndef HBMPROF_SRC_BASE_LOADED_OBJECTS_H_
#define HBMPROF_SRC_BASE_LOADED_OBJECTS_H_

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "src/base/fork.h"

namespace hbmprof::internal {

// Calls visit(object) for each loaded object; the program comes first. visit() runs under a lock of the dynamic linker.
// It may allocate memory, but must not call the dynamic linker or wait for another thread. If visit() throws
// std::bad_alloc, this function ends and throws it. Takes no lock of this library, because a thread that holds the
// linker's lock may call this function. Any thread may call it, but not in a process that is off (fork.h).
//
// The exception does not pass through dl_iterate_phdr: there the C library loads libgcc_s.so.1 to unwind its own frame,
// and ends the process if it has no memory for that.
template <typename Visit>
void ForEachLoadedObject(Visit visit) {
  struct Search {
    Visit& visit;
    bool has_memory = true;
  } search = {visit};
  const auto visit_one = [](dl_phdr_info* object, size_t /*size*/, void* argument) noexcept {
    auto& of = *static_cast<Search*>(argument);
    try {
      of.visit(const_cast<const dl_phdr_info&>(*object));
      return 0;
    } catch (const std::bad_alloc&) {
      of.has_memory = false;
      return 1;
    }
  };
  {
    const Section section;
    dl_iterate_phdr(visit_one, &search);
  }
  if (!search.has_memory) throw std::bad_alloc();
}

// Returns the segment of this type that contains `address`; null if there is none.
inline const ElfW(Phdr) * SegmentOf(const dl_phdr_info& object, uint32_t type, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object.dlpi_phdr[i];
    if (header.p_type == type && address - (object.dlpi_addr + header.p_vaddr) < header.p_memsz) return &header;
  }
  return nullptr;
}

// Returns the dynamic section of the object; null if it has none.
inline const ElfW(Dyn) * DynamicSection(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object.dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) return reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + header.p_vaddr);
  }
  return nullptr;
}

// Returns the object that contains `address`; one without program headers if none does. As ForEachLoadedObject, but
// throws nothing.
inline dl_phdr_info ObjectOf(const void* address) {
  dl_phdr_info found = {};
  ForEachLoadedObject([&](const dl_phdr_info& object) {
    if (SegmentOf(object, PT_LOAD, reinterpret_cast<uintptr_t>(address)) != nullptr) found = object;
  });
  return found;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LOADED_OBJECTS_H_
