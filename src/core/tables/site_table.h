// SiteTable: gives every distinct (call stack, attributes, tags) a small number, its SiteId, which never changes.
//
// Thread safety: all methods may be called from any thread. Finding a known site takes no lock; a new site takes a spin
// lock while its record is made.
#ifndef HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_
#define HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hbmprof/allocation.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/pages.h"
#include "src/capture/capture.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

using SiteId = uint32_t;
inline constexpr SiteId kNoSite = ~SiteId{0};

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

// A distinct call stack. Immutable. Its return addresses follow in memory, innermost first; that of
// SiteTable::OtherSite has none.
struct StackRecord {
  const uintptr_t* pcs() const { return reinterpret_cast<const uintptr_t*>(this + 1); }

  uint64_t hash;
  uint16_t depth;
  bool truncated;
  bool is_other;  // of OtherSite
};

// Everything that identifies a site. `in_pool` is true for SiteKind::kSegment and kBlock. Devices are below
// kMaxDevices, allocators below kMaxAllocators.
struct SiteKey {
  const StackRecord* stack = nullptr;
  Attributes attributes;
  uint32_t tags = 0;  // TagSetId
  bool in_pool = false;
};

// Returns the attributes that PackAttributes has packed.
constexpr Attributes UnpackAttributes(uint64_t packed) {
  static_assert(kMaxDevices <= 1 << 16 && kMemoryKindCount <= 1 << 8 && kMaxAllocators <= 1 << 8);
  return {static_cast<DeviceId>(packed), static_cast<MemoryKind>(packed >> 16), static_cast<AllocatorId>(packed >> 24)};
}

// A SiteKey without its stack, in one word.
struct SiteWord {
  // `attributes` comes from PackAttributes.
  SiteWord(uint64_t attributes, uint32_t tags, bool in_pool)
      : value(attributes | uint64_t{tags} << kTagsShift | uint64_t{in_pool} << kInPoolShift) {}
  explicit SiteWord(const SiteKey& key) : SiteWord(PackAttributes(key.attributes), key.tags, key.in_pool) {}

  SiteKey WithStack(const StackRecord* stack) const {
    return {stack, UnpackAttributes(static_cast<uint32_t>(value)),
            static_cast<uint32_t>(value >> kTagsShift) & (kMaxTagSets - 1), value >> kInPoolShift != 0};
  }
  bool operator==(const SiteWord& other) const { return value == other.value; }

  uint64_t value;  // attributes (at most 32 bits), tags and in_pool

 private:
  static constexpr int kTagsShift = 32;
  static constexpr int kInPoolShift = kTagsShift + 16;
  static_assert(kMaxTagSets == 1 << (kInPoolShift - kTagsShift));
};

// What a record counts: all of its bytes, or, of a pool, a part of them (pools.h).
enum class SiteKind : uint8_t {
  kPlain,
  kPool,     // of MemoryKind::kPool, but not a declared segment: counts all of its bytes
  kSegment,  // a declared segment: counts its idle bytes
  kBlock,    // a block that has taken its bytes from segments
};

// A site: its key, and values computed from it. Immutable, except `freed_ages`.
struct alignas(32) Site {
  explicit Site(const SiteKey& key)
      : word(key), stack(key.stack), account(static_cast<uint8_t>(AccountOf(key.attributes))), kind(KindOf(key)) {}
  SiteKey key() const { return word.WithStack(stack); }
  static SiteKind KindOf(const SiteKey& key) {
    if (key.attributes.kind == MemoryKind::kPool) return key.in_pool ? SiteKind::kSegment : SiteKind::kPool;
    return key.in_pool ? SiteKind::kBlock : SiteKind::kPlain;
  }

  const SiteWord word;
  const StackRecord* const stack;
  const uint8_t account;  // an AccountId
  const SiteKind kind;
  mutable std::atomic<uint32_t> freed_ages{0};  // the number of its counters (ledger/freed_ages.h)
};
static_assert(sizeof(Site) == 32, "two to a cache line");
static_assert(kAccounts <= 256, "an account fits in a byte");

class SiteTable {
 public:
  static constexpr SiteId kMaxSites = SiteId{1} << 22;

  // The frame of the stack of OtherSite.
  static constexpr std::string_view kOtherStacks = "[other call stacks]";

  // Holds at most `max_sites` sites, and at most kMaxSites, besides those of OtherSite.
  explicit SiteTable(int64_t max_sites);
  ~SiteTable();

  static Hash128 HashOf(const CapturedStack& stack) {
    return {stack.hash.low ^ stack.truncated, stack.hash.high ^ stack.truncated};
  }
  // Returns the record of this stack, whose depth may be 0. `hash` is HashOf(stack). Returns null if the stack is new
  // and there is no memory for it or max_sites is reached.
  StackRecord* InternStack(const CapturedStack& stack, const Hash128& hash);
  // Returns the words of a stack, innermost first. May allocate: not for events.
  static std::vector<uint64_t> PcsOf(const StackRecord& stack);

  // Returns the site of `key`, whose stack comes from InternStack or from a site of the same table. If max_sites is
  // reached or there is no memory, returns OtherSite.
  SiteId InternSite(const SiteKey& key);
  // Returns the site for the events whose own site has no place: one without tags, for all stacks. It has the device,
  // the kind, the allocator and in_pool of `word`. Returns kNoSite if there are too many of these.
  SiteId OtherSite(const SiteWord& word);

  // `site` must come from this table.
  const Site& At(SiteId site) const { return records_[site]; }
  SiteKey Key(SiteId site) const { return At(site).key(); }
  // Sites 0 to size()-1 exist.
  SiteId size() const { return size_.load(std::memory_order_acquire); }

  // Returns whether there is a site of OtherSite.
  bool is_full() const { return other_sites_.load(std::memory_order_relaxed) != 0; }

  SiteId max_sites() const { return max_sites_; }
  // Sites have smaller numbers than this.
  SiteId capacity() const { return max_sites_ + kOtherSites; }

 private:
  static constexpr SiteId kOtherSites = 1024;  // the most sites of OtherSite

  // A page more than the records need, so that they are in small pages (see MapPages).
  size_t BytesOfRecords() const { return capacity() * sizeof(Site) + 4096; }
  // Returns kNoSite if there is no site of the key, and no place for it.
  SiteId FindOrMake(const SiteKey& key);

  const SiteId max_sites_;
  StackRecord other_stack_ = {};
  std::atomic<SiteId> other_sites_{0};  // their number
  InternTable stacks_;
  Arena stack_arena_ ABSL_GUARDED_BY(stacks_.lock());
  InternTable sites_;
  std::atomic<SiteId> size_{0};
  Site* const records_;  // null if there is no memory; host bytes are counted for those up to size_
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_SITE_TABLE_H_
