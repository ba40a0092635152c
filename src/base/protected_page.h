// StoreProtected: stores a pointer into a page of a loaded object that can be read-only.
// Not in this file: which pointers an object has (references.h).
#ifndef HBMPROF_SRC_BASE_PROTECTED_PAGE_H_
#define HBMPROF_SRC_BASE_PROTECTED_PAGE_H_

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/loaded_objects.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {

// Returns whether the dynamic linker has relocated the object at this address. Before that it still writes to the pages
// that it makes read-only afterwards. dl_iterate_phdr also visits such an object, which this thread or another one is
// loading. With a glibc before 2.35, where _dl_find_object is that of compat/old_glibc.cc, the result is always true.
inline bool IsRelocated(void** slot) {
  dl_find_object object;
  return _dl_find_object(slot, &object) == 0;
}

// Two threads that store into one page: the first one must not protect it before the second one has stored.
inline SpinLock protected_page_lock;

// Stores `value` at `slot`, in this loaded object. The page then gets the protection that the dynamic linker has given
// it: that of its segment, or read-only if the whole page is in the part that is read-only after relocation. (If that
// part ends inside a page, the rest of that page can have data that the program changes.) Stores nothing if the object
// does not contain the slot or is not relocated, if the kernel does not let the page be written, and in a process that
// is off (fork.h). Takes no lock of the dynamic linker.
inline void StoreProtected(const dl_phdr_info& object, void** slot, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(slot);
  const uintptr_t page = address & ~(page_size - 1);
  const ElfW(Phdr)* const segment = SegmentOf(object, PT_LOAD, address);
  if (segment == nullptr || IsOff() || !IsRelocated(slot)) return;
  int protection = ((segment->p_flags & PF_R) != 0 ? PROT_READ : 0) |
                   ((segment->p_flags & PF_W) != 0 ? PROT_WRITE : 0) | ((segment->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
  if (SegmentOf(object, PT_GNU_RELRO, page + page_size - 1) != nullptr) protection = PROT_READ;
  void* const start = reinterpret_cast<void*>(page);
  const DelayedSignals delayed;
  const Section section;
  const SpinLockHolder hold(protected_page_lock);
  if (mprotect(start, page_size, protection | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if ((protection & PROT_WRITE) == 0) mprotect(start, page_size, protection);
}

// The same for a slot of any object, which must stay loaded. It searches the list of loaded objects under the dynamic
// linker's lock, so do not call it in a visit of ForEachLoadedObject.
inline void StoreProtected(void** slot, void* value) {
  if (!IsOff()) StoreProtected(ObjectOf(slot), slot, value);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_PROTECTED_PAGE_H_
