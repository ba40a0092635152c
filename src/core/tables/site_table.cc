#include "src/core/tables/site_table.h"

#include <algorithm>
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

StackRecord* SiteTable::InternStack(const CapturedStack& captured, const Hash128& hash_of_stack) {
  const uint64_t hash = hash_of_stack.low;
  const auto depth = static_cast<size_t>(captured.depth);
  const auto equal = [&](uint64_t payload) {
    const StackRecord& stack = *StackOf(payload);
    return stack.hash == hash && stack.depth == depth && stack.truncated == captured.truncated &&
           std::equal(captured.pcs, captured.pcs + depth, stack.pcs());
  };
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  // A new stack is needed only for a new site, and there can be no new site.
  if (size() >= max_sites_) return nullptr;

  SpinLockHolder hold(stacks_.lock());
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  if (!stacks_.Reserve([](uint64_t payload) { return StackOf(payload)->hash; })) return nullptr;
  auto* stack = static_cast<StackRecord*>(stack_arena_.Allocate(sizeof(StackRecord) + depth * sizeof(uintptr_t)));
  if (stack == nullptr) return nullptr;
  stack->hash = hash;
  stack->depth = static_cast<uint16_t>(depth);
  stack->truncated = captured.truncated;
  std::copy_n(captured.pcs, depth, reinterpret_cast<uintptr_t*>(stack + 1));
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
