#include "src/base/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {

namespace {

// The size of large pages on x86, and the most common one elsewhere. With ordinary pages, a random access to a large
// table misses the TLB in addition to the caches.
constexpr size_t kLargePage = size_t{2} << 20;

void* Map(size_t bytes) {
  const KeptErrno kept_errno;
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void Advise(void* pages, size_t bytes, int advice) {
  const KeptErrno kept_errno;
  madvise(pages, bytes, advice);  // fails if the kernel does not support large pages
}

void Unmap(void* pages, size_t bytes) {
  const KeptErrno kept_errno;
  munmap(pages, bytes);  // fails if the process would have more mappings than the kernel allows
}

std::atomic<int64_t> host_bytes{0};
std::atomic<int64_t> max_host_bytes{INT64_MAX};

constexpr size_t kPage = 4096;
constexpr size_t kMaxMapping = size_t{1} << 60;

int64_t WholePages(size_t bytes) { return static_cast<int64_t>((bytes + kPage - 1) / kPage * kPage); }

}  // namespace

int64_t HostBytes() { return host_bytes.load(std::memory_order_relaxed); }
int64_t MaxHostBytes() { return max_host_bytes.load(std::memory_order_relaxed); }
void SetMaxHostBytes(int64_t bytes) { max_host_bytes.store(bytes, std::memory_order_relaxed); }

bool TakeHostBytes(int64_t bytes) {
  int64_t taken = host_bytes.load(std::memory_order_relaxed);
  do {
    if (bytes > MaxHostBytes() - taken) return false;
  } while (!host_bytes.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return true;
}

void CountHostBytes(int64_t bytes) { host_bytes.fetch_add(bytes, std::memory_order_relaxed); }

void* MapPages(size_t bytes) {
  if (bytes > kMaxMapping || !TakeHostBytes(WholePages(bytes))) return nullptr;
  void* pages = ReservePages(bytes);
  if (pages == nullptr) CountHostBytes(-WholePages(bytes));
  return pages;
}

void* ReservePages(size_t bytes) {
  if (bytes < kLargePage) return Map(bytes);
  if (bytes % kLargePage != 0) {
    void* const small_pages = Map(bytes);
    if (small_pages != nullptr) Advise(small_pages, bytes, MADV_NOHUGEPAGE);
    return small_pages;
  }
  auto* pages = static_cast<char*>(Map(bytes + kLargePage));
  if (pages == nullptr) return nullptr;
  const size_t before = -reinterpret_cast<uintptr_t>(pages) % kLargePage;
  if (before != 0) Unmap(pages, before);
  pages += before;
  Unmap(pages + bytes, kLargePage - before);
  Advise(pages, bytes, MADV_HUGEPAGE);
  return pages;
}

void UnmapPages(void* pages, size_t bytes) {
  if (pages == nullptr) return;
  Unmap(pages, bytes);
  CountHostBytes(-WholePages(bytes));
}

void RetirePages(void* pages, size_t bytes) {
  DiscardPages(pages, bytes);
  CountHostBytes(-WholePages(bytes));
}

void UnmapRetiredPages(void* pages, size_t bytes) { Unmap(pages, bytes); }

void DiscardPages(void* pages, size_t bytes) {
  const KeptErrno kept_errno;
  // madvise fails if the process has locked its memory (mlockall).
  if (madvise(pages, bytes, MADV_DONTNEED) != 0) std::memset(pages, 0, bytes);
}

Arena::~Arena() {
  for (Chunk* chunk = chunks_; chunk != nullptr;) {
    Chunk* const next = chunk->next;
    UnmapPages(chunk, chunk->bytes);
    chunk = next;
  }
}

void* Arena::Allocate(size_t bytes) {
  bytes = Aligned(bytes);
  Chunk* chunk = chunks_;
  if (chunk == nullptr || bytes > chunk->bytes - chunk->used) {
    const size_t chunk_bytes = std::max(kChunkBytes, bytes + sizeof(Chunk));
    auto* const added = static_cast<Chunk*>(MapPages(chunk_bytes));
    if (added == nullptr) return nullptr;
    added->next = chunk;
    added->bytes = chunk_bytes;
    added->used = sizeof(Chunk);
    chunk = chunks_ = added;
  }
  void* const memory = reinterpret_cast<char*>(chunk) + chunk->used;
  chunk->used += bytes;
  return memory;
}

}  // namespace hbmprof::internal
