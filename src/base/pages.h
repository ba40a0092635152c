// Host memory straight from the kernel, so that recording never enters malloc (which a program may have wrapped with
// us), and an arena on top of it.
#ifndef HBMPROF_SRC_BASE_PAGES_H_
#define HBMPROF_SRC_BASE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

// What all tables of the process take: every mapped page, touched or not, and what is counted below. Never more than
// SetMaxHostBytes allows, but for what was there before and CountHostBytes. Any thread.
int64_t HostBytes();
int64_t MaxHostBytes();
void SetMaxHostBytes(int64_t bytes);  // at first there is no limit
// Counts memory that does not come from MapPages; returns false, and counts nothing, where the limit does not allow it.
bool TakeHostBytes(int64_t bytes);
// The same for memory that is there in any case.
void CountHostBytes(int64_t bytes);

// Zero-filled, page-aligned, takes memory only where it is touched: in pages, and for a multiple of 2 MiB in large
// pages of that size, where the kernel has them. Null if the kernel has none or the limit does not allow it. Leaves
// errno alone.
void* MapPages(size_t bytes);
// MapPages without counting: for a table that takes its host bytes as it fills.
void* ReservePages(size_t bytes);
// `pages` and `bytes` as given to or by MapPages (not ReservePages). Null is ignored.
void UnmapPages(void* pages, size_t bytes);
// Gives pages of MapPages back for good, but keeps their addresses: they read as zeros from now on, for threads that
// may still read them, and must not be written. UnmapRetiredPages ends that.
void RetirePages(void* pages, size_t bytes);
void UnmapRetiredPages(void* pages, size_t bytes);
// Gives the memory back, where it is not locked, and leaves the addresses usable; they read as zeros afterwards.
void DiscardPages(void* pages, size_t bytes);

// Bump allocator of memory that lives as long as the arena. Not thread-safe.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zero-filled, 16-byte aligned; null if the kernel has no memory.
  void* Allocate(size_t bytes);
  // Keeps only the first `used` bytes of `memory`, which the last Allocate returned for `bytes`. The rest is zeroed.
  void Shrink(void* memory, size_t bytes, size_t used);

 private:
  struct Chunk {
    Chunk* next;
    size_t bytes;
  };
  static constexpr size_t kChunkBytes = size_t{256} << 10;
  static constexpr size_t Aligned(size_t bytes) { return (bytes + 15) & ~size_t{15}; }

  Chunk* chunks_ = nullptr;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_PAGES_H_
