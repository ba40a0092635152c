#include "src/core/site_table.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hbmprof::internal {
namespace {

uint64_t HashSite(const SiteKey& key) {
  const SiteWords words(key);
  return MultiplyFold(MultiplyFold(key.stack->hash ^ words.context, kHashSeed1 ^ words.block), kHashSeed0);
}

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

Hash128 SiteTable::HashOf(const CapturedStack& stack) {
  static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "a 64-bit host");
  const auto* words = reinterpret_cast<const uint64_t*>(stack.pcs);
  const Hash128 hash = stack.path != nullptr ? stack.path->hash : HashWords128(words, static_cast<size_t>(stack.depth));
  return {hash.low ^ stack.truncated, hash.high ^ stack.truncated};
}

StackRecord* SiteTable::InternStack(const CapturedStack& captured, const Hash128& hash_of_stack) {
  const uint64_t hash = hash_of_stack.low;
  const auto equal = [&](uint64_t payload) { return StackOf(payload)->Equals(captured, hash); };
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  // A new stack is needed only for a new site.
  if (size() >= max_sites_) return nullptr;

  SpinLockHolder hold(stacks_.lock());
  if (const uint64_t found = stacks_.Find(hash, equal); found != 0) return StackOf(found);
  if (!stacks_.Reserve([](uint64_t payload) { return StackOf(payload)->hash; })) return nullptr;
  const size_t bytes = static_cast<size_t>(captured.depth) * sizeof(uintptr_t);
  auto* stack = static_cast<StackRecord*>(stack_arena_.Allocate(sizeof(StackRecord) + bytes));
  if (stack == nullptr) return nullptr;
  stack->hash = hash;
  stack->depth = static_cast<uint32_t>(captured.depth);
  stack->truncated = captured.truncated;
  std::memcpy(static_cast<void*>(stack + 1), captured.pcs, bytes);
  stacks_.Insert(hash, reinterpret_cast<uintptr_t>(stack));
  return stack;
}

SiteId SiteTable::FindSite(uint64_t hash, const SiteKey& key) const {
  const SiteWords words(key);
  const uint64_t found = sites_.Find(hash, [&](uint64_t payload) {
    const Site& site = At(static_cast<SiteId>(payload - 1));
    return site.hash == hash && site.key.stack == key.stack && site.words == words;
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
  if (!sites_.Reserve([this](uint64_t payload) { return At(static_cast<SiteId>(payload - 1)).hash; })) return kNoSite;
  std::atomic<Site*>& chunk = chunks_[site >> kChunkBits];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    auto* records = static_cast<Site*>(MapPages(sizeof(Site) << kChunkBits));
    if (records == nullptr) return kNoSite;
    chunk.store(records, std::memory_order_release);
  }
  new (chunk.load(std::memory_order_relaxed) + (site & ((1u << kChunkBits) - 1))) Site(key, hash);
  size_.store(site + 1, std::memory_order_release);
  sites_.Insert(hash, uint64_t{site} + 1);
  const_cast<StackRecord*>(key.stack)->sites.fetch_add(1, std::memory_order_relaxed);
  return site;
}

void SiteTable::LockAll() {
  stacks_.lock().Lock();
  sites_.lock().Lock();
}

void SiteTable::UnlockAll() {
  sites_.lock().Unlock();
  stacks_.lock().Unlock();
}

}  // namespace hbmprof::internal
