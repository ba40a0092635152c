// SiteTable: gives every distinct (call stack, attributes, tags, pool that handed the memory out) a small number, its
// SiteId, which never changes. Also PoolNumbers, and the numbers of accounts and books.
//
// Thread safety: all methods may be called from any thread. Finding a known site takes no lock; a new site takes a spin
// lock while its record is made.
#ifndef HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_
#define HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hbmprof/allocation.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/capture/capture.h"
#include "src/core/tables/reserved_array.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

using SiteId = uint32_t;
inline constexpr SiteId kNoSite = ~SiteId{0};

inline constexpr int kMaxAllocators = 256;  // of a process: AllocatorIds are below it

// 0 stands for no pool.
using PoolNumber = uint8_t;
inline constexpr int kMaxPools = 127;

// Gives each pool (device and allocator) a number from 1 to 127, which never changes. Any thread may call any function.
// Only a new number takes a lock.
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

inline constexpr int kAccounts = kMaxDevices * kMemorySpaceCount;

// One memory space of one device.
using AccountId = int;
constexpr AccountId AccountOf(DeviceId device, MemorySpace space) {
  return static_cast<int>(device) * kMemorySpaceCount + static_cast<int>(space);
}
constexpr AccountId AccountOf(const Attributes& attributes) {
  return AccountOf(attributes.device, SpaceOf(attributes.kind));
}

// A distinct call stack. Immutable. Its return addresses follow in memory, innermost first; that of
// SiteTable::OtherSite has none.
struct StackRecord {
  const uintptr_t* pcs() const { return reinterpret_cast<const uintptr_t*>(this + 1); }

  uint64_t hash;
  uint16_t depth;
  bool truncated;
  bool is_other;  // of OtherSite
};

// A sum of bytes with a peak: the bytes in use of an account, which is its book, or the bytes that a pool has
// allocated.
using BookId = int;
inline constexpr int kBooks = kAccounts + kMaxPools + 1;
constexpr BookId BookOf(PoolNumber pool) { return kAccounts + pool; }

// Returns whether packed attributes may be out of range, or the kind may be kPool, kExternal or kAlias.
inline bool NeedClamp(uint64_t attributes) {
  constexpr uint64_t kCommon =
      PackAttributes({DeviceId{kMaxDevices - 1}, MemoryKind{7}, AllocatorId{kMaxAllocators - 1}});
  static_assert(static_cast<int>(MemoryKind::kAlias) > 7 && (kMaxDevices & (kMaxDevices - 1)) == 0);
  const bool is_pool = (attributes >> 16 & 0xff) == static_cast<uint64_t>(MemoryKind::kPool);
  return __builtin_expect(static_cast<int64_t>((attributes & ~kCommon) != 0 || is_pool), 0) != 0;
}
// Returns the attributes that PackAttributes has packed.
constexpr Attributes UnpackAttributes(uint64_t packed) {
  static_assert(kMaxDevices <= 1 << 16 && kMemoryKindCount <= 1 << 8 && kMaxAllocators <= 1 << 8);
  return {static_cast<DeviceId>(packed), static_cast<MemoryKind>(packed >> 16), static_cast<AllocatorId>(packed >> 24)};
}

// What identifies a site besides its stack, in one word.
struct SiteLabels {
  // `attributes` comes from PackAttributes. The device is below kMaxDevices, the allocator below kMaxAllocators.
  SiteLabels(uint64_t attributes, TagSetId tags, PoolNumber from)
      : value(attributes | uint64_t{tags} << kTagsShift | uint64_t{from} << kFromShift) {}
  SiteLabels(const Attributes& attributes, TagSetId tags, PoolNumber from)
      : SiteLabels(PackAttributes(attributes), tags, from) {}
  explicit SiteLabels(uint64_t value) : value(value) {}

  // Those of a segment are MemoryKind::kPool and the name of its own pool.
  Attributes attributes() const { return UnpackAttributes(static_cast<uint32_t>(value)); }
  TagSetId tags() const { return static_cast<TagSetId>(value >> kTagsShift) & (kMaxTagSets - 1); }
  // The pool, of the same device, that has handed the memory out. 0: none, the memory is from the device.
  PoolNumber from() const { return static_cast<PoolNumber>(value >> kFromShift); }
  // The same with other attributes.
  SiteLabels With(const Attributes& attributes) const { return {attributes, tags(), from()}; }
  bool operator==(const SiteLabels& other) const { return value == other.value; }

  uint64_t value;

 private:
  static constexpr int kTagsShift = 32;
  static constexpr int kFromShift = kTagsShift + 16;
  static_assert(kMaxTagSets == 1 << (kFromShift - kTagsShift));
};

// Where the events of a site are counted.
struct SiteBooks {
  BookId book() const { return book_number; }
  // Whether a pool has handed the memory out, and its number.
  bool is_from_pool() const { return book_number >= kAccounts; }
  PoolNumber from() const { return static_cast<PoolNumber>(book_number - kAccounts); }

  uint16_t book_number;  // that of `from` or, without it, of the account
  uint8_t account;       // an AccountId: of the device that the memory is on
  PoolNumber pool : 7;   // of a segment its own pool, of others `from`
  uint8_t is_segment : 1;
};
static_assert(sizeof(SiteBooks) == 4 && kMaxPools < 1 << 7 && kBooks < 1 << 16 && kAccounts <= 256);

// A site: what identifies it, and values computed from that. Immutable.
struct alignas(32) Site {
  // `own_pool`: of a segment, the number of its own pool.
  Site(const StackRecord* stack, SiteLabels labels, PoolNumber own_pool)
      : labels(labels), stack(stack), books(BooksOf(labels, own_pool)) {}

  const SiteLabels labels;
  const StackRecord* const stack;
  const SiteBooks books;

 private:
  static SiteBooks BooksOf(SiteLabels labels, PoolNumber own_pool) {
    const AccountId account = AccountOf(labels.attributes());
    const bool is_segment = labels.attributes().kind == MemoryKind::kPool;
    const PoolNumber from = labels.from();
    SiteBooks books = {};
    books.book_number = static_cast<uint16_t>(from != 0 ? BookOf(from) : account);
    books.account = static_cast<uint8_t>(account);
    books.pool = (is_segment ? own_pool : from) & kMaxPools;
    books.is_segment = static_cast<uint8_t>(is_segment) & 1;
    return books;
  }
};
static_assert(sizeof(Site) == 32, "two to a cache line");

class SiteTable {
 public:
  static constexpr SiteId kMaxSites = SiteId{1} << 22;

  // The frame of the stack of OtherSite.
  static constexpr std::string_view kOtherStacks = "[other call stacks]";

  // The host memory that a site takes besides its call stack: its Site, and the most that it can take in the ledger. It
  // is counted when the site is made, so each event of a site can be entered.
  static constexpr int64_t kLedgerBytes = 8 * 64 + 24 * 4;  // ledger.h asserts that
  static constexpr int64_t kBytesPerSite = sizeof(Site) + kLedgerBytes;

  // Holds at most `max_sites` sites, and at most kMaxSites, besides those of OtherSite. Throws std::bad_alloc.
  explicit SiteTable(int64_t max_sites);
  ~SiteTable();

  // Returns the record of this stack, whose depth may be 0. Returns null if the stack is new and there is no memory for
  // it or max_sites is reached.
  StackRecord* InternStack(const CapturedStack& stack);
  // The number of truncated stacks that have a record.
  int64_t truncated_stacks() const { return truncated_stacks_.load(std::memory_order_relaxed); }
  // Returns the words of a stack, innermost first. May allocate: not for events.
  static std::vector<uint64_t> PcsOf(const StackRecord& stack);

  // Returns the site of a stack, which comes from InternStack or from a site of the same table. If max_sites is reached
  // or there is no memory, returns OtherSite.
  SiteId InternSite(const StackRecord* stack, SiteLabels labels);
  // Returns the site for the events whose own site has no place: that of all stacks, without tags. Returns kNoSite if
  // there are too many of these.
  SiteId OtherSite(SiteLabels labels);

  // `site` must come from this table.
  const Site& At(SiteId site) const { return records_[site]; }
  PoolNumbers& pools() { return pools_; }
  const PoolNumbers& pools() const { return pools_; }
  // Sites 0 to size()-1 exist.
  SiteId size() const { return size_.load(std::memory_order_acquire); }

  // Returns whether there is a site of OtherSite.
  bool is_full() const { return other_sites_.load(std::memory_order_relaxed) != 0; }

  SiteId max_sites() const { return max_sites_; }
  // Sites have smaller numbers than this.
  SiteId capacity() const { return max_sites_ + kOtherSites; }

 private:
  // The most sites of OtherSite. Their memory is counted from the start, because a byte must not disappear.
  static constexpr SiteId kOtherSites = 256;

  // Returns kNoSite if there is no such site, and no place for it.
  SiteId FindOrMake(const StackRecord* stack, SiteLabels labels);

  const SiteId max_sites_;
  PoolNumbers pools_;
  StackRecord other_stack_ = {};
  std::atomic<SiteId> other_sites_{0};  // their number
  InternTable stacks_;
  Arena stack_arena_ ABSL_GUARDED_BY(stacks_.lock());
  InternTable sites_;
  std::atomic<SiteId> size_{0};
  std::atomic<int64_t> truncated_stacks_{0};
  const ReservedArray<Site> records_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_
