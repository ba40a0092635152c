// Host memory directly from the kernel, and an arena that uses it. The recording of events does not call malloc,
// because the program may have a malloc that records its calls here. No function changes errno.
#ifndef HBMPROF_SRC_BASE_PAGES_H_
#define HBMPROF_SRC_BASE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

// Host memory of all tables of the process, in bytes: all pages of MapPages, touched or not, and the bytes counted by
// the two functions below. The sum can exceed the limit by the bytes that were counted before the limit was set, and by
// the bytes of CountHostBytes, but not otherwise. Any thread may call these functions.
int64_t HostBytes();
int64_t MaxHostBytes();
void SetMaxHostBytes(int64_t bytes);  // initially there is no limit
// Counts memory that does not come from MapPages. Returns false, without counting, if it would exceed the limit.
bool TakeHostBytes(int64_t bytes);
// Counts like TakeHostBytes, but without the limit. A negative number subtracts bytes.
void CountHostBytes(int64_t bytes);

// Returns zero-filled, page-aligned memory, which takes physical memory only for pages that are touched. If `bytes` is
// a multiple of 2 MiB, the memory is in large pages of 2 MiB if the kernel supports them. Other memory is in small
// pages, so that a page that is touched takes no more than its own bytes. Returns null if the kernel has no memory or
// the limit would be exceeded.
void* MapPages(size_t bytes);
// Like MapPages, but does not count the bytes. It is for a table that counts its host bytes while it fills.
// UnmapRetiredPages unmaps them.
void* ReservePages(size_t bytes);
// Unmaps memory of MapPages (not ReservePages), with the same `bytes`. Does nothing if `pages` is null.
void UnmapPages(void* pages, size_t bytes);
// Returns the physical memory of pages of MapPages to the kernel, as DiscardPages does, and no longer counts it. The
// addresses stay mapped until UnmapRetiredPages, for threads that may still read them. They read as zeros from now on
// and must not be written.
void RetirePages(void* pages, size_t bytes);
void UnmapRetiredPages(void* pages, size_t bytes);
// Returns the physical memory to the kernel, unless it is locked. The addresses stay mapped and read as zeros.
void DiscardPages(void* pages, size_t bytes);

// Bump allocator. Its memory lives as long as the arena. Not thread-safe.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns zero-filled memory, aligned to 16 bytes; null in the same cases as MapPages.
  void* Allocate(size_t bytes);

 private:
  struct alignas(16) Chunk {
    Chunk* next;
    size_t bytes;
    size_t used;  // in bytes, including this struct
  };
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  static constexpr size_t Aligned(size_t bytes) { return (bytes + 15) & ~size_t{15}; }

  Chunk* chunks_ = nullptr;  // the newest first
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_PAGES_H_
