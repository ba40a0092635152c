// PoolNumbers: gives each pool (device and allocator) a number from 1 to 127, which never changes.
//
// Thread safety: all methods may be called from any thread at any time. Only a new number takes a lock.
#ifndef HBMPROF_SRC_CORE_TABLES_POOL_NUMBERS_H_
#define HBMPROF_SRC_CORE_TABLES_POOL_NUMBERS_H_

#include <atomic>
#include <cstdint>

#include "hbmprof/allocation.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {

inline constexpr int kMaxAllocators = 256;

// 0 stands for no pool.
using PoolNumber = uint8_t;
inline constexpr int kMaxPools = 127;

class PoolNumbers {
 public:
  // The device and the allocator of `pool` must be below kMaxDevices and kMaxAllocators. Returns 0 if the pool has no
  // number.
  PoolNumber Find(const Pool& pool) const {
    return numbers_[static_cast<int>(pool.device)][static_cast<int>(pool.allocator)].load(std::memory_order_acquire);
  }
  // Gives the pool a number if it has none. Returns 0 if there are too many pools.
  PoolNumber FindOrMake(const Pool& pool) {
    const PoolNumber found = Find(pool);
    return found != 0 ? found : Make(pool);
  }
  // REQUIRES: `number` was returned by one of these.
  const Pool& Of(PoolNumber number) const { return pools_[number]; }
  // The pools have the numbers from 1 to size().
  int size() const { return size_.load(std::memory_order_acquire); }

 private:
  [[gnu::noinline]] PoolNumber Make(const Pool& pool) {
    SpinLockHolder hold(lock_);
    if (const PoolNumber found = Find(pool); found != 0) return found;
    const int number = size() + 1;
    if (number > kMaxPools) return 0;
    pools_[number] = pool;
    size_.store(number, std::memory_order_release);
    numbers_[static_cast<int>(pool.device)][static_cast<int>(pool.allocator)].store(static_cast<PoolNumber>(number),
                                                                                    std::memory_order_release);
    return static_cast<PoolNumber>(number);
  }

  std::atomic<PoolNumber> numbers_[kMaxDevices][kMaxAllocators] = {};
  Pool pools_[kMaxPools + 1];  // by number; immutable once it is below size_
  std::atomic<int> size_{0};
  SpinLock lock_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_POOL_NUMBERS_H_
