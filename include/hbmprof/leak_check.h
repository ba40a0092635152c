// LeakCheck: fails a GoogleTest test that does not free the device memory it allocates.
//
//   TEST(Cache, FreesItsPages) {
//     hbmprof::LeakCheck leaks;
//     Cache cache(allocator);
//     cache.Insert(...);
//     cache.Clear();
//   }  // fails here if memory that was allocated after the construction of `leaks` is still live
//
// The message of the failure has the call stacks of the leaks. LeakCheck compares the profiler's records, not the free
// memory of the device. So it is exact to the byte, other processes have no effect on it, and it works the same with
// every backend and with the simulated device, without a GPU.
//
// This header needs GoogleTest, which the library does not need: include it in tests only.
#ifndef HBMPROF_LEAK_CHECK_H_
#define HBMPROF_LEAK_CHECK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hbmprof/allocation.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

namespace hbmprof {

// Checks the allocations of all threads from its construction to its destruction. For each call site (stack, labels,
// size) it compares the live buffers at the end with those at the beginning. So a leak is not found if an older buffer
// of the same call site was freed meanwhile. A buffer that was resized meanwhile can count as a new one if other
// buffers with its stack and labels were allocated meanwhile. Idle memory of pools is not a leak.
//
// The test also fails if recording was off (HBMPROF=0) at the beginning or at the end, or if an allocation was dropped
// because a limit was reached (HBMPROF_MAX_LIVE): then leaks would not be found.
//
// Use an object in one thread at a time.
class LeakCheck {
 public:
  // Checks the records of `profiler`, which must live longer than this object. `file` and `line` are the source
  // location of the failure that the destructor reports.
  explicit LeakCheck(Profiler& profiler = Profiler::Default(), const char* file = __builtin_FILE(),
                     int line = __builtin_LINE())
      : LeakCheck(profiler, file, line, profiler.TakeSnapshot()) {}
  LeakCheck(const LeakCheck&) = delete;
  LeakCheck& operator=(const LeakCheck&) = delete;

  // Reports a nonfatal failure of the test if memory leaked or if leaks could not be checked, unless Dismiss() was
  // called.
  ~LeakCheck() {
    if (dismissed_) return;
    const std::string report = NotRecorded() + Report();
    if (!report.empty()) ADD_FAILURE_AT(file_, line_) << report;
  }

  // Returns the bytes of the leaks (see above).
  int64_t LeakedBytes() const {
    int64_t bytes = 0;
    for (const Leak& leak : Leaks(profiler_.TakeSnapshot())) bytes += leak.bytes;
    return bytes;
  }

  // Returns the leaks, the largest first, with their call stacks; "" if there are none.
  std::string Report() const {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    const std::vector<Leak> leaks = Leaks(snapshot);
    if (leaks.empty()) return "";
    int64_t bytes = 0;
    int64_t objects = 0;
    for (const Leak& leak : leaks) {
      bytes += leak.bytes;
      objects += leak.objects;
    }
    std::string text = "device memory allocated in this scope was not freed: " + Amount(bytes, objects) + "\n";
    constexpr size_t kShown = 20;
    for (size_t i = 0; i < leaks.size() && i < kShown; ++i) text += Describe(snapshot, leaks[i]);
    if (leaks.size() > kShown) text += "... and " + std::to_string(leaks.size() - kShown) + " more call sites\n";
    return text;
  }

  // The destructor reports nothing from now on.
  void Dismiss() { dismissed_ = true; }

 private:
  // Identifies a stack with its labels in all snapshots of the process: stack, device, kind, allocator, tags.
  using Origin = std::tuple<std::vector<uint64_t>, std::string, MemoryKind, std::string,
                            std::vector<std::pair<std::string, std::string>>>;
  using Site = std::pair<Origin, int64_t>;  // with the size
  struct Held {
    int64_t bytes = 0;
    int64_t objects = 0;
    int64_t allocations = 0;  // so far; the allocation of a resized buffer counts for its new site
  };
  using Sites = std::map<Site, Held>;
  struct Leak {
    Site site;
    int64_t bytes;
    int64_t objects;
  };

  LeakCheck(Profiler& profiler, const char* file, int line, const Snapshot& before)
      : profiler_(profiler),
        file_(file),
        line_(line),
        before_(SitesOf(before)),
        dropped_before_(before.tracker.dropped_records),
        was_enabled_(profiler.enabled()) {}

  // Returns the reason why leaks could not be checked; "" if they could.
  std::string NotRecorded() const {
    if (!was_enabled_ || !profiler_.enabled()) {
      return "leaks could not be checked: recording is off (is HBMPROF=0 set?)\n";
    }
    const int64_t dropped = profiler_.TakeSnapshot().tracker.dropped_records - dropped_before_;
    if (dropped == 0) return "";
    return "leaks could not be checked: " + std::to_string(dropped) +
           " allocations in this scope were not recorded because a limit was reached (HBMPROF_MAX_LIVE)\n";
  }

  static Sites SitesOf(const Snapshot& snapshot) {
    Sites sites;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.kind == MemoryKind::kPool) continue;
      const Origin origin = {snapshot.stacks[sample.stack].return_addresses, snapshot.devices[sample.device].name,
                             sample.kind, snapshot.allocators[sample.allocator], sample.tags};
      Held& held = sites[{origin, sample.block_bytes}];
      held.bytes += sample.inuse_bytes;
      held.objects += sample.inuse_objects;
      held.allocations += sample.alloc_objects;
    }
    return sites;
  }

  // Returns the number of buffers of each origin that were certainly resized. A resized buffer takes its allocation
  // from its old site to its new site. So the result is the number of allocations that sites have lost, but at most the
  // number of additional buffers minus the number of new allocations.
  static std::map<Origin, int64_t> ResizedIn(const Sites& changes) {
    struct Sums {
      int64_t more = 0;
      int64_t left = 0;
      int64_t allocations = 0;
    };
    std::map<Origin, Sums> origins;
    for (const auto& [site, change] : changes) {
      Sums& sums = origins[site.first];
      sums.more += std::max<int64_t>(0, change.objects);
      sums.left += std::max<int64_t>(0, -change.allocations);
      sums.allocations += change.allocations;
    }
    std::map<Origin, int64_t> resized;
    for (const auto& [origin, sums] : origins) {
      resized[origin] = std::max<int64_t>(0, std::min(sums.left, sums.more - sums.allocations));
    }
    return resized;
  }

  std::vector<Leak> Leaks(const Snapshot& snapshot) const {
    Sites changes = SitesOf(snapshot);
    for (const auto& [site, held] : before_) {
      Held& change = changes[site];
      change.bytes -= held.bytes;
      change.objects -= held.objects;
      change.allocations -= held.allocations;
    }
    std::map<Origin, int64_t> resized = ResizedIn(changes);
    std::vector<Leak> leaks;
    for (const auto& [site, change] : changes) {
      if (change.objects <= 0) continue;
      int64_t& of_origin = resized[site.first];
      const int64_t arrived = std::min(of_origin, change.objects);
      of_origin -= arrived;
      const int64_t objects = change.objects - arrived;
      if (objects > 0) leaks.push_back({site, arrived == 0 ? change.bytes : objects * site.second, objects});
    }
    std::stable_sort(leaks.begin(), leaks.end(), [](const Leak& a, const Leak& b) { return a.bytes > b.bytes; });
    return leaks;
  }

  static std::string Amount(int64_t bytes, int64_t objects) {
    return std::to_string(bytes) + " B in " + std::to_string(objects) + (objects == 1 ? " buffer" : " buffers");
  }

  static std::string Describe(const Snapshot& snapshot, const Leak& leak) {
    const auto& [stack, device, kind, allocator, tags] = leak.site.first;
    std::string text =
        "  " + Amount(leak.bytes, leak.objects) + " on " + device + ", " + std::string(MemoryKindName(kind));
    if (!allocator.empty()) text += ", allocator " + allocator;
    for (const auto& [key, value] : tags) text += ", " + key + "=" + value;
    std::vector<uint64_t> calls;
    for (const uint64_t frame : stack) {
      if (!Snapshot::IsNamedFrame(frame)) calls.push_back(frame - 1);  // into the call instruction
    }
    const std::vector<Symbolizer::Name> names = ElfSymbolizer().Symbolize(snapshot.modules, calls);
    auto name = names.begin();
    for (size_t i = 0; i < stack.size(); ++i) {
      text += "\n    #" + std::to_string(i) + " ";
      if (Snapshot::IsNamedFrame(stack[i])) {
        const Snapshot::NamedFrame& frame = snapshot.named_frames[static_cast<uint32_t>(stack[i])];
        text += frame.function + " " + frame.file + ":" + std::to_string(frame.line);
      } else {
        text += name->name.empty() ? "[unknown]" : name->name;
        ++name;
      }
    }
    if (stack.empty()) text += "\n    [no stack]";
    return text + "\n";
  }

  Profiler& profiler_;
  const char* const file_;
  const int line_;
  const Sites before_;
  const int64_t dropped_before_;
  const bool was_enabled_;
  bool dismissed_ = false;
};

}  // namespace hbmprof

#endif  // HBMPROF_LEAK_CHECK_H_
