#include "tests/support/failing_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

extern "C" {
extern const char __executable_start;  // NOLINT: the linker's names
extern const char etext;               // NOLINT
}

namespace {

thread_local bool counted = false;
thread_local int fails_in = 0;
thread_local bool failed = false;

void* Allocate(size_t bytes, size_t alignment, const void* returns_to) {
  const char* const caller = static_cast<const char*>(returns_to);
  if (counted && caller >= &__executable_start && caller < &etext && fails_in > 0 && --fails_in == 0) {
    failed = true;
    return nullptr;
  }
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) == 0 ? memory : nullptr;
}

void* AllocateOrThrow(size_t bytes, size_t alignment, const void* returns_to) {
  void* const memory = Allocate(bytes, alignment, returns_to);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr size_t kAlignment = alignof(std::max_align_t);

}  // namespace

#define RETURNS_TO __builtin_return_address(0)

[[gnu::noinline]] void* operator new(size_t bytes) { return AllocateOrThrow(bytes, kAlignment, RETURNS_TO); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return AllocateOrThrow(bytes, kAlignment, RETURNS_TO); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment), RETURNS_TO);
}
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment), RETURNS_TO);
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, kAlignment, RETURNS_TO);
}
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, kAlignment, RETURNS_TO);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace hbmprof_test {

void CountedNew::Fail(int nth) {
  fails_in = nth;
  failed = false;
}
bool CountedNew::HasFailed() { return failed; }
CountedNew::CountedNew() { counted = true; }
CountedNew::~CountedNew() { counted = false; }

}  // namespace hbmprof_test
