// kChurn, kReallocated and kPool: fewer calls of the driver.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {
namespace {

// Returns the smallest power of two, in nanoseconds, such that at least half of the freed buffers of the group lived
// for this time or less.
int64_t MedianLifetime(const Group& group) {
  const int64_t all = absl::c_accumulate(group.lifetimes, int64_t{0});
  int64_t sum = 0;
  for (size_t power = 0; power < group.lifetimes.size(); ++power) {
    sum += group.lifetimes[power];
    if (2 * sum >= all) return int64_t{1} << power;
  }
  return 0;
}

// Returns the results of a simulation: the calls of the driver and the peak, before and after.
std::vector<std::pair<std::string, int64_t>> CallsAndPeak(const Account& account, int64_t calls, int64_t peak) {
  return {{"driver_calls_before", account.calls},
          {"driver_calls_after", calls},
          {"peak_before", account.peak},
          {"peak_after", peak}};
}

}  // namespace

void AdviseChurn(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  if (!account.kept.is_used) return;
  Advice advice = found.AdviceOn(AdviceKind::kChurn, a);
  uint32_t most = 0;
  int64_t buffers = 0;
  for (uint32_t g = 0; g < found.groups.size(); ++g) {
    if (found.groups[g].account != a || !found.churns[g]) continue;
    if (buffers == 0 || found.groups[g].short_lived > found.groups[most].short_lived) most = g;
    buffers += found.groups[g].short_lived;
    AddTo(advice.bytes, found.groups[g].short_bytes);
    advice.sites.push_back(found.SiteOf(g, found.groups[g].short_bytes, found.groups[g].short_lived));
  }
  const bool is_one = advice.sites.size() == 1;
  const std::string names = Shorten(advice.sites, "function", true);
  advice.text = Cat("Keep the buffers of ", names, " instead of freeing them: ", buffers,
                    " buffers are short-lived; half of ", is_one ? "them" : "those of " + advice.sites[0].function,
                    " live for up to ", Nanos(MedianLifetime(found.groups[most])), ".");
  advice.how = Cat("Short-lived: freed within 1/", kShortLivedPart,
                   " of the recording's length. The recording is replayed with a list of free buffers of each size for "
                   "each of these functions.");
  advice.replay = CallsAndPeak(account, account.calls - account.kept.calls_saved, account.kept.peak);
  report.advice.push_back(std::move(advice));
}

void AdviseReallocated(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  if (!account.held.is_used) return;
  Advice advice = found.AdviceOn(AdviceKind::kReallocated, a);
  for (const auto& [pair, count] : found.reallocated) {
    if (found.groups[pair.first].account == a) advice.sites.push_back(found.SiteOfPair(pair, 0, count));
  }
  advice.text = Cat("Do not free buffers of ", Shorten(advice.sites, "pair"),
                    " right before the allocation of equal ones: ", account.reallocated,
                    " buffers are freed and allocated again by the next event of the thread.");
  advice.how = "The recording is replayed without these frees and allocations.";
  advice.replay = CallsAndPeak(account, account.calls - account.held.calls_saved, account.held.peak);
  report.advice.push_back(std::move(advice));
}

void AdvisePool(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  const PoolSimulation* best = nullptr;
  const auto calls_of = [&account](const PoolSimulation& pool) {
    return account.calls - pool.calls_saved + pool.pool->segment_count();
  };
  for (const PoolSimulation& pool : account.pools) {
    const int64_t more = pool.peak - account.peak;
    if (more > std::max(kPoolPeakBytes, PercentOf(kPoolPeakPercent, account.peak))) continue;
    if (2 * calls_of(pool) > account.calls) continue;
    if (best == nullptr || calls_of(pool) < calls_of(*best)) best = &pool;
  }
  if (best == nullptr) return;
  Advice advice = found.AdviceOn(AdviceKind::kPool, a);
  advice.bytes = best->pool->reserved_bytes();
  for (uint32_t g = 0; g < found.groups.size(); ++g) {
    if (found.groups[g].account == a && found.groups[g].short_lived >= kMinCalls) {
      advice.sites.push_back(found.SiteOf(g, found.groups[g].short_bytes, found.groups[g].calls));
    }
  }
  Shorten(advice.sites);
  std::vector<std::pair<int64_t, int64_t>> sizes;  // (count, bytes)
  for (const auto& [bytes, count] : account.size_counts) {
    if (bytes <= best->limit) sizes.emplace_back(count, bytes);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::string frequent;
  for (size_t i = 0; i < sizes.size() && i < kShownSites; ++i) {
    frequent += Cat(i == 0 ? "" : ", ", Bytes(sizes[i].second), " (", sizes[i].first, " times)");
  }
  advice.text = Cat("Serve sizes up to ", Bytes(best->limit), " from a pool of ", Bytes(advice.bytes),
                    ": the calls of the driver fall from ", account.calls, " to ", calls_of(*best),
                    ", and the peak changes from ", Bytes(account.peak), " to ", Bytes(best->peak), ".");
  advice.how = Cat("The recording is replayed through a best-fit pool that splits and joins blocks and keeps its ",
                   best->pool->segment_count(), " segments. The most frequent short-lived sizes: ", frequent, ".");
  advice.replay = CallsAndPeak(account, calls_of(*best), best->peak);
  advice.replay.insert(
      advice.replay.begin(),
      {{"pool_limit", best->limit}, {"pool_bytes", advice.bytes}, {"pool_segments", best->pool->segment_count()}});
  report.advice.push_back(std::move(advice));
}

}  // namespace hbmprof::tool::advise
