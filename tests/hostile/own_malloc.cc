// Has its own malloc: memory from one array, never reused. A free of a pointer that is not from the array is an error.
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/hostile/hostile.h"

namespace {

alignas(64) char arena[64 << 20];
std::atomic<size_t> used{0};

struct Header {
  size_t bytes;
  size_t check;
};

void* Take(size_t alignment, size_t bytes) {
  const size_t needed = bytes + alignment + sizeof(Header);
  const size_t start = used.fetch_add((needed + 63) / 64 * 64);
  if (start + needed > sizeof(arena)) return nullptr;
  const uintptr_t first = reinterpret_cast<uintptr_t>(arena) + start + sizeof(Header);
  const uintptr_t address = (first + alignment - 1) / alignment * alignment;
  const Header header = {bytes, ~address};
  std::memcpy(reinterpret_cast<void*>(address - sizeof(Header)), &header, sizeof(header));
  return reinterpret_cast<void*>(address);
}

Header HeaderOf(void* block) {
  Header header = {};
  if (block < arena || block >= arena + sizeof(arena)) _exit(96);
  std::memcpy(&header, static_cast<char*>(block) - sizeof(Header), sizeof(header));
  if (header.check != ~reinterpret_cast<uintptr_t>(block)) _exit(95);
  return header;
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) { return Take(16, bytes); }
void free(void* block) {
  if (block != nullptr) HeaderOf(block);
}
void* calloc(size_t count, size_t bytes) { return Take(16, count * bytes); }  // the arena is zero
void* realloc(void* block, size_t bytes) {
  void* moved = Take(16, bytes);
  if (block != nullptr && moved != nullptr) {
    const size_t before = HeaderOf(block).bytes;
    std::memcpy(moved, block, before < bytes ? before : bytes);
  }
  return moved;
}
void* aligned_alloc(size_t alignment, size_t bytes) { return Take(alignment, bytes); }
void* memalign(size_t alignment, size_t bytes) { return Take(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = Take(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
size_t malloc_usable_size(void* block) { return HeaderOf(block).bytes; }
}

int main() {
  Allocate(1000);
  for (int i = 0; i < 4; ++i) std::thread(Churn, 100).join();
  std::puts("done");
}
