// The memory of a substitute driver: host memory, a capacity, refused frees. Thread-safe.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_VENDORS_FAKE_MEMORY_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_VENDORS_FAKE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace fake_vendors {

constexpr size_t kCapacity = size_t{64} << 20;

// Returns kCapacity, or the value of the environment variable.
inline size_t Capacity() {
  static const char* const text = std::getenv("FAKE_VENDORS_CAPACITY");
  return text == nullptr ? kCapacity : std::strtoull(text, nullptr, 10);
}

class Memory {
 public:
  static Memory& Instance() {
    static Memory* const memory = new Memory;
    return *memory;
  }

  // Returns 0 if there is no memory. Memory that is not on the device takes nothing of the capacity. `owner`: the
  // device whose end frees it; -1: none.
  uintptr_t Allocate(size_t bytes, bool is_on_device = true, int owner = -1) {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (bytes > Capacity() || (is_on_device && bytes > Capacity() - used_)) return 0;
    void* const made =
        mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return 0;
    const auto address = reinterpret_cast<uintptr_t>(made);
    live_[address] = {bytes, is_on_device ? bytes : 0, owner};
    used_ += live_[address].taken;
    return address;
  }
  // Returns whether there was an allocation at the address.
  bool Free(uintptr_t address) {
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto found = live_.find(address);
    if (found == live_.end()) return false;
    Unmap(*found);
    live_.erase(found);
    return true;
  }
  void FreeAllOf(int owner) {
    const std::lock_guard<std::mutex> hold(mutex_);
    for (auto one = live_.begin(); one != live_.end();) {
      const bool ends = one->second.owner == owner;
      if (ends) Unmap(*one);
      one = ends ? live_.erase(one) : std::next(one);
    }
  }
  // Returns 0 if no allocation contains the address.
  size_t Find(uintptr_t address, uintptr_t* start, int* owner = nullptr) {
    const std::lock_guard<std::mutex> hold(mutex_);
    auto after = live_.upper_bound(address);
    if (after == live_.begin()) return 0;
    --after;
    *start = after->first;
    if (owner != nullptr) *owner = after->second.owner;
    return address - after->first < after->second.bytes ? after->second.bytes : 0;
  }
  size_t used() {
    const std::lock_guard<std::mutex> hold(mutex_);
    return used_;
  }

 private:
  struct Block {
    size_t bytes = 0;
    size_t taken = 0;
    int owner = -1;
  };
  void Unmap(const std::pair<const uintptr_t, Block>& block) {
    used_ -= block.second.taken;
    munmap(reinterpret_cast<void*>(block.first), block.second.bytes + 1);
  }
  std::mutex mutex_;
  std::map<uintptr_t, Block> live_;
  size_t used_ = 0;
};

}  // namespace fake_vendors

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_VENDORS_FAKE_MEMORY_H_
