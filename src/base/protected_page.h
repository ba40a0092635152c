// StoreProtected: stores a pointer into a page of a loaded object that can be read-only.
// Not in this file: which pointers an object has (references.h).
#ifndef HBMPROF_SRC_BASE_PROTECTED_PAGE_H_
#define HBMPROF_SRC_BASE_PROTECTED_PAGE_H_

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {

// Two threads that store into one page: the first one must not protect it before the second one has stored.
inline SpinLock protected_page_lock;

// Stores `value` at `slot`, in the object with this load address and these `count` program headers. The page then gets
// the protection that the dynamic linker has given it: that of its segment, or read-only if the whole page is in the
// part that is read-only after relocation. (If that part ends inside a page, the rest of that page can have data that
// the program changes.) Stores nothing if the kernel does not let the page be written. A page of which the headers say
// nothing stays writable. Does nothing in a process that is off (fork.h). Takes no lock of the
// dynamic linker.
inline void StoreProtected(ElfW(Addr) base, const ElfW(Phdr) * headers, int count, void** slot, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(slot);
  const uintptr_t page = address & ~(page_size - 1);
  int protection = PROT_READ | PROT_WRITE;
  bool is_read_only = false;
  for (int i = 0; i < count; ++i) {
    const ElfW(Phdr)& header = headers[i];
    const uintptr_t begin = base + header.p_vaddr;
    if (header.p_type == PT_LOAD && address - begin < header.p_memsz) {
      protection = ((header.p_flags & PF_R) != 0 ? PROT_READ : 0) | ((header.p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                   ((header.p_flags & PF_X) != 0 ? PROT_EXEC : 0);
    }
    const uintptr_t end = page + page_size;
    is_read_only |= header.p_type == PT_GNU_RELRO && end > begin && end <= begin + header.p_memsz;
  }
  if (is_read_only) protection = PROT_READ;
  void* const start = reinterpret_cast<void*>(page);
  if (IsOff()) return;
  const DelayedSignals delayed;
  const Section section;
  const SpinLockHolder hold(protected_page_lock);
  if (mprotect(start, page_size, protection | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if ((protection & PROT_WRITE) == 0) mprotect(start, page_size, protection);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_PROTECTED_PAGE_H_
