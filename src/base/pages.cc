#include "src/base/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace hbmprof::internal {

namespace {

// x86's large page, and the most common one elsewhere. A random access to ordinary pages of a large table misses the
// processor's table of pages besides its caches.
constexpr size_t kLargePage = size_t{2} << 20;

void* Map(size_t bytes) {
  const int saved_errno = errno;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  errno = saved_errno;
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace

void* MapPages(size_t bytes) {
  if (bytes < kLargePage || bytes % kLargePage != 0) return Map(bytes);
  auto* pages = static_cast<char*>(Map(bytes + kLargePage));
  if (pages == nullptr) return nullptr;
  const size_t before = -reinterpret_cast<uintptr_t>(pages) % kLargePage;
  if (before != 0) munmap(pages, before);
  pages += before;
  munmap(pages + bytes, kLargePage - before);
  const int saved_errno = errno;
  madvise(pages, bytes, MADV_HUGEPAGE);  // refused by kernels without
  errno = saved_errno;
  return pages;
}

void UnmapPages(void* pages, size_t bytes) {
  if (pages != nullptr) munmap(pages, bytes);
}

void DiscardPages(void* pages, size_t bytes) {
  // Refused where the process has locked its memory (mlockall).
  if (madvise(pages, bytes, MADV_DONTNEED) != 0) std::memset(pages, 0, bytes);
}

Arena::~Arena() {
  while (chunks_ != nullptr) {
    Chunk* chunk = chunks_;
    chunks_ = chunk->next;
    UnmapPages(chunk, chunk->bytes);
  }
}

void* Arena::Allocate(size_t bytes) {
  bytes = (bytes + 15) & ~size_t{15};
  if (bytes > left_) {
    const size_t chunk_bytes = std::max(kChunkBytes, bytes + sizeof(Chunk));
    auto* chunk = static_cast<Chunk*>(MapPages(chunk_bytes));
    if (chunk == nullptr) return nullptr;
    chunk->next = chunks_;
    chunk->bytes = chunk_bytes;
    chunks_ = chunk;
    next_ = reinterpret_cast<char*>(chunk + 1);
    left_ = chunk_bytes - sizeof(Chunk);
  }
  void* result = next_;
  next_ += bytes;
  left_ -= bytes;
  return result;
}

}  // namespace hbmprof::internal
