#include "src/core/tables/site_table.h"

#include <algorithm>
#include <new>

#include "src/capture/python/named_frames.h"

namespace hbmprof::internal {
namespace {

uint64_t HashSite(const StackRecord& stack, SiteLabels labels) {
  return MultiplyFold(MultiplyFold(stack.hash, kHashSeed1 ^ labels.value), kHashSeed0);
}

StackRecord* StackOf(uint64_t payload) { return reinterpret_cast<StackRecord*>(payload); }

}  // namespace

SiteTable::SiteTable(int64_t max_sites)
    : max_sites_(static_cast<SiteId>(std::clamp<int64_t>(max_sites, 1, kMaxSites))), records_(capacity()) {
  other_stack_.is_other = true;
  CountHostBytes(kBytesPerSite * kOtherSites);
}

SiteTable::~SiteTable() { CountHostBytes(-kBytesPerSite * (size() - other_sites_ + kOtherSites)); }

StackRecord* SiteTable::InternStack(const CapturedStack& captured) {
  const uint64_t hash = captured.hash.low;
  const auto depth = static_cast<size_t>(captured.depth);
  const auto equal = [&](uint64_t payload) {
    const StackRecord& stack = *StackOf(payload);
    return stack.hash == hash && stack.depth == depth && stack.truncated == captured.truncated &&
           std::equal(captured.pcs, captured.pcs + depth, stack.pcs());
  };
  const auto make = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS -> uintptr_t {
    // A new stack is needed only for a new site.
    if (size() - other_sites_.load(std::memory_order_relaxed) >= max_sites_) return 0;
    auto* stack = static_cast<StackRecord*>(stack_arena_.Allocate(sizeof(StackRecord) + depth * sizeof(uintptr_t)));
    if (stack == nullptr) return 0;
    stack->hash = hash;
    stack->depth = static_cast<uint16_t>(depth);
    stack->truncated = captured.truncated;
    stack->is_other = false;
    std::copy_n(captured.pcs, depth, reinterpret_cast<uintptr_t*>(stack + 1));
    if (captured.truncated) truncated_stacks_.fetch_add(1, std::memory_order_relaxed);
    return reinterpret_cast<uintptr_t>(stack);
  };
  const auto hash_of = [](uint64_t payload) { return StackOf(payload)->hash; };
  return StackOf(stacks_.Intern(hash, equal, hash_of, make));
}

std::vector<uint64_t> SiteTable::PcsOf(const StackRecord& stack) {
  if (!stack.is_other) return {stack.pcs(), stack.pcs() + stack.depth};
  const uint64_t word = InternNamedFrame(kOtherStacks, "", 0, 0);
  return word != 0 ? std::vector<uint64_t>{word} : std::vector<uint64_t>{};
}

SiteId SiteTable::InternSite(const StackRecord* stack, SiteLabels labels) {
  const SiteId site = stack->is_other ? kNoSite : FindOrMake(stack, labels);
  return site != kNoSite ? site : OtherSite(labels);
}

SiteId SiteTable::OtherSite(SiteLabels labels) {
  return FindOrMake(&other_stack_, {labels.attributes(), kNoTags, labels.from()});
}

SiteId SiteTable::FindOrMake(const StackRecord* stack, SiteLabels labels) {
  const auto site_of = [this](uint64_t payload) -> const Site& { return At(static_cast<SiteId>(payload - 1)); };
  const auto equal = [&](uint64_t payload) {
    return site_of(payload).stack == stack && site_of(payload).labels == labels;
  };
  const auto make = [&]() -> uint64_t {
    const SiteId site = size_.load(std::memory_order_relaxed);
    const SiteId others = other_sites_.load(std::memory_order_relaxed);
    if (stack->is_other) {
      if (others >= kOtherSites) return 0;
      other_sites_.store(others + 1, std::memory_order_relaxed);
    } else {
      if (site - others >= max_sites_ || !TakeHostBytes(kBytesPerSite)) return 0;
    }
    const Attributes attributes = labels.attributes();
    const bool is_segment = attributes.kind == MemoryKind::kPool;
    new (&records_[site])
        Site(stack, labels, is_segment ? pools_.Find({attributes.device, attributes.allocator}) : PoolNumber{0});
    size_.store(site + 1, std::memory_order_release);
    return uint64_t{site} + 1;
  };
  const auto hash_of = [&](uint64_t payload) { return HashSite(*site_of(payload).stack, site_of(payload).labels); };
  const uint64_t found = sites_.Intern(HashSite(*stack, labels), equal, hash_of, make);
  return found == 0 ? kNoSite : static_cast<SiteId>(found - 1);
}

}  // namespace hbmprof::internal
