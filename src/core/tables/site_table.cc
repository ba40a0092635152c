#include "src/core/tables/site_table.h"

#include <algorithm>
#include <cstddef>
#include <new>

namespace hbmprof::internal {
namespace {

uint64_t HashSite(const StackRecord& stack, const SiteWords& words) {
  return MultiplyFold(MultiplyFold(stack.hash ^ words.attributes, kHashSeed1 ^ words.block), kHashSeed0);
}
uint64_t HashSite(const SiteKey& key) { return HashSite(*key.stack, SiteWords(key)); }

uint64_t RoundUpToPowerOfTwo(uint64_t bytes) {
  return bytes <= 1 ? bytes : uint64_t{1} << (64 - __builtin_clzll(bytes - 1));
}

StackRecord* StackOf(uint64_t payload) { return reinterpret_cast<StackRecord*>(payload); }

constexpr size_t kMaxEncodedBytes = 10;  // of a difference

uint8_t* Encode(uint64_t difference, uint8_t* out) {
  uint64_t number = difference << 1 ^ (0 - (difference >> 63));
  for (; number >= 0x80; number >>= 7) *out++ = static_cast<uint8_t>(number | 0x80);
  *out++ = static_cast<uint8_t>(number);
  return out;
}

// Calls `visit(pc)` for each return address, innermost first. Stops and returns false if `visit` returns false.
template <typename Visit>
bool ForEachPc(const StackRecord& stack, const Visit& visit) {
  const uint8_t* next = stack.differences();
  uint64_t pc = 0;
  for (int i = 0; i < stack.depth; ++i) {
    uint64_t number = *next & 0x7f;
    for (int shift = 7; (*next++ & 0x80) != 0; shift += 7) number |= uint64_t{*next & 0x7fu} << shift;
    pc += number >> 1 ^ (0 - (number & 1));
    if (!visit(pc)) return false;
  }
  return true;
}

}  // namespace

SiteTable::SiteTable(int64_t max_sites)
    : max_sites_(static_cast<SiteId>(std::clamp<int64_t>(max_sites, 1, kMaxSites))),
      chunks_(
          static_cast<std::atomic<Site*>*>(MapPages(((max_sites_ >> kChunkBits) + 1) * sizeof(std::atomic<Site*>)))) {}

SiteTable::~SiteTable() {
  if (chunks_ == nullptr) return;
  for (uint32_t i = 0; i <= max_sites_ >> kChunkBits; ++i) {
    UnmapPages(chunks_[i].load(std::memory_order_relaxed), sizeof(Site) << kChunkBits);
  }
  UnmapPages(chunks_, ((max_sites_ >> kChunkBits) + 1) * sizeof(std::atomic<Site*>));
}

std::vector<uint64_t> SiteTable::PcsOf(const StackRecord& stack) {
  std::vector<uint64_t> pcs(stack.depth);
  uint64_t* next = pcs.data();
  ForEachPc(stack, [&](uintptr_t pc) {
    *next++ = pc;
    return true;
  });
  return pcs;
}

StackRecord* SiteTable::InternStack(const CapturedStack& captured, const Hash128& hash_of_stack) {
  const uint64_t hash = hash_of_stack.low;
  const auto depth = static_cast<size_t>(captured.depth);
  const auto equal = [&](uint64_t payload) {
    const StackRecord& stack = *StackOf(payload);
    const uintptr_t* pc = captured.pcs;
    return stack.hash == hash && stack.depth == depth && stack.truncated == captured.truncated &&
           ForEachPc(stack, [&](uintptr_t known) { return known == *pc++; });
  };
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  // A new stack is needed only for a new site, and there can be no new site.
  if (size() >= max_sites_) return nullptr;

  SpinLockHolder hold(stacks_.lock());
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  if (!stacks_.Reserve([](uint64_t payload) { return StackOf(payload)->hash; })) return nullptr;
  const size_t max_bytes = sizeof(StackRecord) + depth * kMaxEncodedBytes;
  auto* stack = static_cast<StackRecord*>(stack_arena_.Allocate(max_bytes));
  if (stack == nullptr) return nullptr;
  stack->hash = hash;
  stack->depth = static_cast<uint16_t>(depth);
  stack->truncated = captured.truncated;
  auto* next = const_cast<uint8_t*>(stack->differences());
  for (size_t i = 0; i < depth; ++i) next = Encode(captured.pcs[i] - (i == 0 ? 0 : captured.pcs[i - 1]), next);
  const auto bytes = static_cast<size_t>(next - reinterpret_cast<uint8_t*>(stack));
  stack_arena_.Shrink(stack, max_bytes, std::max(bytes, sizeof(StackRecord)));
  stacks_.Insert(hash, reinterpret_cast<uintptr_t>(stack));
  return stack;
}

SiteId SiteTable::FindSite(uint64_t hash, const SiteKey& key) const {
  const SiteWords words(key);
  const uint64_t found = sites_.Find(hash, [&](uint64_t payload) {
    const Site& site = At(static_cast<SiteId>(payload - 1));
    return site.stack == key.stack && site.words == words;
  });
  return found == 0 ? kNoSite : static_cast<SiteId>(found - 1);
}

SiteId SiteTable::InternSite(const SiteKey& key) {
  const uint64_t hash = HashSite(key);
  if (const SiteId found = FindSite(hash, key); found != kNoSite) return found;
  if (key.stack->sites.load(std::memory_order_relaxed) < kExactSites) return AddSite(hash, key);
  SiteKey rounded = key;
  rounded.block_bytes = RoundUpToPowerOfTwo(key.block_bytes);
  const uint64_t rounded_hash = HashSite(rounded);
  const SiteId found = FindSite(rounded_hash, rounded);
  return found != kNoSite ? found : AddSite(rounded_hash, rounded);
}

SiteId SiteTable::AddSite(uint64_t hash, const SiteKey& key) {
  SpinLockHolder hold(sites_.lock());
  if (const SiteId found = FindSite(hash, key); found != kNoSite) return found;
  const SiteId site = size_.load(std::memory_order_relaxed);
  if (site >= max_sites_ || chunks_ == nullptr) return kNoSite;
  const auto hash_of = [this](uint64_t payload) {
    const Site& other = At(static_cast<SiteId>(payload - 1));
    return HashSite(*other.stack, other.words);
  };
  if (!sites_.Reserve(hash_of)) return kNoSite;
  std::atomic<Site*>& chunk = chunks_[site >> kChunkBits];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    auto* records = static_cast<Site*>(MapPages(sizeof(Site) << kChunkBits));
    if (records == nullptr) return kNoSite;
    chunk.store(records, std::memory_order_release);
  }
  new (chunk.load(std::memory_order_relaxed) + (site & ((1u << kChunkBits) - 1))) Site(key);
  size_.store(site + 1, std::memory_order_release);
  sites_.Insert(hash, uint64_t{site} + 1);
  const_cast<StackRecord*>(key.stack)->sites.fetch_add(1, std::memory_order_relaxed);
  return site;
}

}  // namespace hbmprof::internal
