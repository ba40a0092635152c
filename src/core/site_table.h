// SiteTable: gives every distinct (call stack, attributes, tags, block size) a small number, its SiteId, for ever.
//
// Thread safety: any thread may call any function. To find a known site takes no lock. To add one takes a spin lock
// while its record is made.
//
// The block size is a part of a site, so that a profile can show it. After kExactSites sites with the same stack,
// further sizes of this stack are rounded up to a power of two, which limits the number of sites per stack.
#ifndef HBMPROF_SRC_CORE_SITE_TABLE_H_
#define HBMPROF_SRC_CORE_SITE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <cstring>

#include "hbmprof/allocation.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/pages.h"
#include "src/capture/capture.h"

namespace hbmprof::internal {

using SiteId = uint32_t;
inline constexpr SiteId kNoSite = ~SiteId{0};

inline constexpr int kMaxDevices = 64;
inline constexpr int kMaxAllocators = 256;
inline constexpr int kAccounts = kMaxDevices * kMemorySpaceCount;

// One memory space of one device.
using AccountId = int;
constexpr AccountId AccountOf(DeviceId device, MemorySpace space) {
  return static_cast<int>(device) * kMemorySpaceCount + static_cast<int>(space);
}
constexpr AccountId AccountOf(const Attributes& attributes) {
  return AccountOf(attributes.device, SpaceOf(attributes.kind));
}

// A distinct call stack, innermost return address first. Immutable except for `sites`.
struct StackRecord {
  uint64_t hash;
  uint32_t depth;
  bool truncated;
  std::atomic<uint32_t> sites;  // number of sites with this stack
  const uintptr_t* pcs() const { return reinterpret_cast<const uintptr_t*>(this + 1); }
  bool Equals(const CapturedStack& stack, uint64_t hash_of_stack) const {
    return hash == hash_of_stack && depth == static_cast<uint32_t>(stack.depth) && truncated == stack.truncated &&
           std::memcmp(pcs(), stack.pcs, depth * sizeof(uintptr_t)) == 0;
  }
};

// Everything that identifies a site. Objects that are `in_pool` are declared segments (of kind kPool), or blocks, whose
// bytes are taken from the segments that contain them. Sizes are at most 2^40, devices are below kMaxDevices,
// allocators below kMaxAllocators.
struct SiteKey {
  const StackRecord* stack = nullptr;
  uint64_t block_bytes = 0;
  Attributes attributes;
  uint32_t tags = 0;  // TagSetId
  bool in_pool = false;
};

// A SiteKey without its stack, packed into two words, which are built and compared in registers.
struct SiteWords {
  SiteWords(uint64_t block_bytes, uint64_t packed_attributes, uint32_t tags, bool in_pool)
      : block(block_bytes | packed_attributes), context(uint64_t{tags} | uint64_t{in_pool} << 32) {}
  explicit SiteWords(const SiteKey& key) : SiteWords(key.block_bytes, Packed(key.attributes), key.tags, key.in_pool) {}

  // Packs attributes into the bits above the size.
  static uint64_t Packed(const Attributes& attributes) {
    return static_cast<uint64_t>(attributes.device) << kDeviceShift |
           static_cast<uint64_t>(attributes.kind) << kKindShift |
           static_cast<uint64_t>(attributes.allocator) << kAllocatorShift;
  }
  static Attributes Unpacked(uint64_t block) {
    return {static_cast<DeviceId>(block >> kDeviceShift & (kMaxDevices - 1)),
            static_cast<MemoryKind>(block >> kKindShift & ((1 << (kAllocatorShift - kKindShift)) - 1)),
            static_cast<AllocatorId>(block >> kAllocatorShift)};
  }
  SiteKey WithStack(const StackRecord* stack) const {
    return {stack, block & ((uint64_t{1} << kDeviceShift) - 1), Unpacked(block), static_cast<uint32_t>(context),
            context >> 32 != 0};
  }
  bool operator==(const SiteWords& other) const { return block == other.block && context == other.context; }

  uint64_t block;    // size and attributes
  uint64_t context;  // tags and in_pool

 private:
  static constexpr int kDeviceShift = 41;
  static constexpr int kKindShift = kDeviceShift + 6;
  static constexpr int kAllocatorShift = kKindShift + 4;
  static_assert(kMaxDevices <= 1 << 6 && kMemoryKindCount <= 1 << 4);
};

// A site: its key, and values that follow from the key. Immutable.
struct alignas(64) Site {
  Site(const SiteKey& key, uint64_t hash)
      : key(key),
        hash(hash),
        words(key),
        account(AccountOf(key.attributes)),
        is_pool(key.attributes.kind == MemoryKind::kPool),
        is_segment(is_pool && key.in_pool),
        is_block(!is_pool && key.in_pool),
        is_plain(!is_pool && !key.in_pool) {}

  const SiteKey key;
  const uint64_t hash;
  const SiteWords words;
  const AccountId account;
  const bool is_pool;     // of kind kPool
  const bool is_segment;  // a declared segment
  const bool is_block;    // in a segment
  const bool is_plain;    // neither of kind kPool nor in a pool
};
static_assert(sizeof(Site) == 64, "one cache line");

class SiteTable {
 public:
  static constexpr SiteId kMaxSites = SiteId{1} << 22;

  // The table holds at most min(`max_sites`, kMaxSites) sites.
  explicit SiteTable(int64_t max_sites);
  ~SiteTable();

  static Hash128 HashOf(const CapturedStack& stack);
  // Returns the record of `stack`, whose depth may be 0. `hash` is HashOf(stack). Returns null if the stack is new and
  // there is no memory for it, or no site left.
  StackRecord* InternStack(const CapturedStack& stack, const Hash128& hash);

  // Returns the site of `key`, whose stack comes from InternStack of this table. Returns kNoSite if the site is new and
  // the table has max_sites sites, or there is no memory.
  SiteId InternSite(const SiteKey& key);

  // `site` must come from this table.
  const Site& At(SiteId site) const {
    return chunks_[site >> kChunkBits].load(std::memory_order_acquire)[site & ((1u << kChunkBits) - 1)];
  }
  const SiteKey& Key(SiteId site) const { return At(site).key; }
  // Sites 0 to size()-1 exist.
  SiteId size() const { return size_.load(std::memory_order_acquire); }

  SiteId max_sites() const { return max_sites_; }

  // To be called around a fork.
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  static constexpr uint32_t kChunkBits = 10;
  static constexpr uint32_t kExactSites = 256;

  SiteId FindSite(uint64_t hash, const SiteKey& key) const;
  SiteId AddSite(uint64_t hash, const SiteKey& key);

  const SiteId max_sites_;
  InternTable stacks_;
  Arena stack_arena_ ABSL_GUARDED_BY(stacks_.lock());
  InternTable sites_;
  std::atomic<SiteId> size_{0};
  // An array of max_sites / 2^kChunkBits + 1 pointers. Each is set once, under sites_.lock().
  std::atomic<Site*>* chunks_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_TABLE_H_
