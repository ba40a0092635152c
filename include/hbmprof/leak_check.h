// LeakCheck: fails a GoogleTest test that does not free the device memory it allocates. PeakCheck: fails a test that
// uses more device memory than it may.
//
//   TEST(Cache, FreesItsPages) {
//     hbmprof::LeakCheck leaks;
//     Cache cache(allocator);
//     cache.Insert(...);
//     cache.Clear();
//   }  // fails here if memory that was allocated after the construction of `leaks` is still live
//
//   TEST(Cache, StaysSmall) {
//     hbmprof::PeakCheck peak(64 << 20);
//     Cache cache(allocator);
//     cache.Insert(...);
//   }  // fails here if more than 64 MiB, beyond what was in use before, were in use on a device at some time
//
//   TEST(Server, KeepsItsBudget) {
//     hbmprof::PeakCheck peak("memory.budget");
//     Serve(allocator);
//   }  // fails here if a function, or all together, exceeded this file, which `hbmprof budget` has made of a profile
//
// The message of the failure has the call stacks of the leaks, or those that held the memory at the peak. The checks
// compare the profiler's records, not the free memory of the device. So they are exact to the byte, other processes
// have no effect on them, and they work the same with every backend and with the simulated device, without a GPU.
//
// This header needs GoogleTest, which the library does not need: include it in tests only.
#ifndef HBMPROF_LEAK_CHECK_H_
#define HBMPROF_LEAK_CHECK_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hbmprof/allocation.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

namespace hbmprof {

namespace internal {

// What LeakCheck and PeakCheck have in common.
class MemoryCheck {
 public:
  MemoryCheck(const MemoryCheck&) = delete;
  MemoryCheck& operator=(const MemoryCheck&) = delete;

  // The destructor reports nothing from now on.
  void Dismiss() { dismissed_ = true; }

 protected:
  // Identifies a stack with its labels in all snapshots of the process: stack, device, kind, allocator, tags.
  using Origin = std::tuple<std::vector<uint64_t>, std::string, MemoryKind, std::string,
                            std::vector<std::pair<std::string, std::string>>>;
  struct Found {
    Origin origin;
    int64_t bytes;
    int64_t objects;
  };

  // `what`: what is checked, such as "leaks".
  MemoryCheck(Profiler& profiler, const char* what, const char* file, int line)
      : profiler_(profiler),
        what_(what),
        file_(file),
        line_(line),
        dropped_before_(profiler.TakeSnapshot().tracker.dropped_records),
        was_enabled_(profiler.enabled()) {}
  ~MemoryCheck() = default;

  // Reports a nonfatal failure of the test if `report` is not empty, or if the check was not possible. Prints a warning
  // if the profiler has recorded nothing at all: then the test may have used another one, or no device.
  void FailWith(const std::string& report) const {
    const std::string text = NotRecorded() + report;
    if (!text.empty()) {
      ADD_FAILURE_AT(file_, line_) << text;
    } else if (profiler_.TakeSnapshot().devices.empty()) {
      std::fprintf(stderr, "%s:%d: warning: %s: nothing was checked, because no device memory was recorded so far\n",
                   file_, line_, what_);
    }
  }

  static Origin OriginOf(const Snapshot& snapshot, const Snapshot::Sample& sample) {
    return {snapshot.stacks[sample.stack].return_addresses, snapshot.devices[sample.device].name, sample.kind,
            snapshot.allocators[sample.allocator], sample.tags};
  }

  // `objects`: how many buffers there are more; at most 0 if fewer or as many buffers have more bytes.
  static std::string Amount(int64_t bytes, int64_t objects) {
    if (objects <= 0) return std::to_string(bytes) + " B in larger buffers";
    return std::to_string(bytes) + " B in " + std::to_string(objects) + (objects == 1 ? " buffer" : " buffers");
  }

  // Returns the call stacks, the largest first.
  static std::string Describe(const Snapshot& snapshot, std::vector<Found> found) {
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.bytes > b.bytes; });
    constexpr size_t kShown = 20;
    std::string text;
    for (size_t i = 0; i < found.size() && i < kShown; ++i) text += DescribeOne(snapshot, found[i]);
    if (found.size() > kShown) text += "... and " + std::to_string(found.size() - kShown) + " more call sites\n";
    return text;
  }

  Profiler& profiler_;
  bool dismissed_ = false;

 private:
  // Returns the reason why the check was not possible; "" if it was.
  std::string NotRecorded() const {
    if (!was_enabled_ || !profiler_.enabled()) {
      return std::string(what_) + " could not be checked: recording is off (is HBMPROF=0 set?)\n";
    }
    if (profiler_.uses_injected()) return std::string(what_) + " could not be checked under `hbmprof run`\n";
    const int64_t dropped = profiler_.TakeSnapshot().tracker.dropped_records - dropped_before_;
    if (dropped == 0) return "";
    return std::string(what_) + " could not be checked: " + std::to_string(dropped) +
           " allocations in this scope were not recorded because a limit was reached (HBMPROF_MAX_LIVE)\n";
  }

  static std::string DescribeOne(const Snapshot& snapshot, const Found& found) {
    const auto& [stack, device, kind, allocator, tags] = found.origin;
    std::string text =
        "  " + Amount(found.bytes, found.objects) + " on " + device + ", " + std::string(MemoryKindName(kind));
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

  const char* const what_;
  const char* const file_;
  const int line_;
  const int64_t dropped_before_;
  const bool was_enabled_;
};

}  // namespace internal

// Checks the allocations of all threads from its construction to its destruction. For each call site (stack, labels)
// it compares the number of live buffers at the end with that at the beginning. So a leak is not found if an older
// buffer of the same call site was freed meanwhile, and the bytes of a leak include those by which older buffers of its
// call site have grown. Idle memory of pools and code that a driver has loaded (kind kExecutable) are no leaks.
//
// The test also fails if leaks would not be found: if recording was off (HBMPROF=0) at the beginning or at the end, if
// an allocation was dropped because a limit was reached (HBMPROF_MAX_LIVE), and under `hbmprof run`, where a snapshot
// has no call sites.
//
// Use an object in one thread at a time.
class LeakCheck : public internal::MemoryCheck {
 public:
  // Checks the records of `profiler`, which must live longer than this object. `file` and `line` are the source
  // location of the failure that the destructor reports. An object without a name would check nothing.
  [[nodiscard]] explicit LeakCheck(Profiler& profiler = Profiler::Default(), const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE())
      : MemoryCheck(profiler, "leaks", file, line), before_(SitesOf(profiler.TakeSnapshot())) {}

  // Reports a nonfatal failure of the test if memory leaked or if leaks could not be checked, unless Dismiss() was
  // called.
  ~LeakCheck() {
    if (!dismissed_) FailWith(Report());
  }

  // Returns the bytes of the leaks (see above).
  int64_t LeakedBytes() const {
    int64_t bytes = 0;
    for (const Found& leak : Leaks(profiler_.TakeSnapshot())) bytes += leak.bytes;
    return bytes;
  }

  // Returns the leaks, the largest first, with their call stacks; "" if there are none.
  std::string Report() const {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    const std::vector<Found> leaks = Leaks(snapshot);
    if (leaks.empty()) return "";
    int64_t bytes = 0;
    int64_t objects = 0;
    for (const Found& leak : leaks) {
      bytes += leak.bytes;
      objects += leak.objects;
    }
    return "device memory allocated in this scope was not freed: " + Amount(bytes, objects) + "\n" +
           Describe(snapshot, leaks);
  }

 private:
  struct Held {
    int64_t bytes = 0;
    int64_t objects = 0;
  };
  using Sites = std::map<Origin, Held>;

  static Sites SitesOf(const Snapshot& snapshot) {
    Sites sites;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.kind == MemoryKind::kPool || sample.kind == MemoryKind::kExecutable) continue;
      Held& held = sites[OriginOf(snapshot, sample)];
      held.bytes += sample.inuse_bytes;
      held.objects += sample.inuse_objects;
    }
    return sites;
  }

  std::vector<Found> Leaks(const Snapshot& snapshot) const {
    std::vector<Found> leaks;
    for (const auto& [origin, held] : SitesOf(snapshot)) {
      const auto found = before_.find(origin);
      const Held before = found == before_.end() ? Held() : found->second;
      const int64_t objects = held.objects - before.objects;
      // If older buffers of the site were larger, the bytes may be fewer than before. A leak has at least one of each.
      if (objects > 0) leaks.push_back({origin, std::max(held.bytes - before.bytes, objects), objects});
    }
    return leaks;
  }

  const Sites before_;
};

// Checks the bytes in use on each device from its construction to its destruction, of all threads: they may exceed
// those of the construction by `max_bytes` at most. Idle memory of pools counts, because the driver has given it away.
// Pinned and managed memory do not count.
//
// The construction begins a new peak of each device (Profiler::ResetPeak). So the test fails if the scopes of two
// objects of one profiler overlap. It also fails if recording was off at the beginning or at the end, if an allocation
// was dropped, and under `hbmprof run`, as with LeakCheck.
//
// Use an object in one thread at a time.
class PeakCheck : public internal::MemoryCheck {
 public:
  // `max_bytes`: in bytes. The other parameters are those of LeakCheck.
  [[nodiscard]] explicit PeakCheck(int64_t max_bytes, Profiler& profiler = Profiler::Default(),
                                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : MemoryCheck(profiler, "the peak", file, line),
        max_bytes_(max_bytes),
        overlaps_(CountOpen(profiler, 1) > 1),
        before_(NewPeaks(profiler)) {}

  // Checks the peak with the file `budget`, by the command `hbmprof diff --budget`, which must be on PATH. What was in
  // use at the construction counts as well.
  [[nodiscard]] explicit PeakCheck(std::string budget, Profiler& profiler = Profiler::Default(),
                                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : PeakCheck(INT64_MAX, profiler, file, line) {
    budget_ = std::move(budget);
  }

  // Reports a nonfatal failure of the test if a device has exceeded the limit, or if that could not be checked, unless
  // Dismiss() was called.
  ~PeakCheck() {
    CountOpen(profiler_, -1);
    const char* const problem =
        overlaps_ ? "the peak could not be checked: its scope begins inside that of another PeakCheck\n" : "";
    if (!dismissed_) FailWith(problem + Report());
  }

  // Returns the highest number of bytes in use on a device so far, beyond those at the construction: that of the device
  // for which it is highest.
  int64_t PeakBytes() const {
    int64_t most = 0;
    for (const Snapshot::Device& device : profiler_.TakeSnapshot().devices) most = std::max(most, PeakOf(device));
    return most;
  }

  // Returns, for each device that has exceeded the limit, the call stacks that held the memory at its peak, beyond what
  // they held at the construction, the largest first; "" if there is no such device. If a call stack held more bytes
  // but not more buffers, the text says that its buffers are larger. With a budget, returns what the command says; ""
  // if the budget is kept.
  std::string Report() const {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    if (!budget_.empty()) return OverBudget(snapshot);
    std::string text;
    for (size_t i = 0; i < snapshot.devices.size(); ++i) {
      const Snapshot::Device& device = snapshot.devices[i];
      const int64_t peak = PeakOf(device);
      if (peak <= max_bytes_) continue;
      text += "this scope used " + std::to_string(peak) + " B of " + device.name + " at its peak, more than " +
              std::to_string(max_bytes_) + " B; the call stacks with the most at that time:\n" +
              Describe(snapshot, AtPeak(snapshot, i));
    }
    return text;
  }

 private:
  struct Start {
    std::map<std::string, int64_t> devices;               // bytes in use by the device's name
    std::map<Origin, std::pair<int64_t, int64_t>> sites;  // bytes and objects in use
  };

  // Adds `change` to the number of the profiler's objects, and returns it.
  static int CountOpen(const Profiler& profiler, int change) {
    static std::mutex mutex;
    static std::map<const Profiler*, int> open;
    const std::lock_guard<std::mutex> hold(mutex);
    const int count = open[&profiler] += change;
    if (count == 0) open.erase(&profiler);
    return count;
  }

  static bool IsDeviceMemory(MemoryKind kind) { return SpaceOf(kind) == MemorySpace::kDevice; }
  static const DeviceStats& StatsOf(const Snapshot::Device& device) {
    return device.spaces[static_cast<int>(MemorySpace::kDevice)];
  }

  static Start NewPeaks(Profiler& profiler) {
    for (const Snapshot::Device& device : profiler.TakeSnapshot().devices)
      profiler.ResetPeak(profiler.Device(device.name));
    Start start;
    const Snapshot snapshot = profiler.TakeSnapshot();
    for (const Snapshot::Device& device : snapshot.devices) start.devices[device.name] = StatsOf(device).bytes_in_use;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      auto& [bytes, objects] = start.sites[OriginOf(snapshot, sample)];
      bytes += sample.inuse_bytes;
      objects += sample.inuse_objects;
    }
    return start;
  }

  int64_t PeakOf(const Snapshot::Device& device) const {
    const auto found = before_.devices.find(device.name);
    return StatsOf(device).peak_bytes_in_use - (found == before_.devices.end() ? 0 : found->second);
  }

  std::string OverBudget(const Snapshot& snapshot) const {
    const auto is_used = [](const Snapshot::Device& device) { return StatsOf(device).peak_bytes_in_use > 0; };
    if (!std::any_of(snapshot.devices.begin(), snapshot.devices.end(), is_used)) return "";
    constexpr char kNotChecked[] = "the budget could not be checked: ";
    const std::string profile = testing::TempDir() + "hbmprof_budget." + std::to_string(snapshot.process_id) + ".pb.gz";
    const absl::Status written = WritePprof(snapshot, &ElfSymbolizer(), profile);
    if (!written.ok()) return kNotChecked + std::string(written.message()) + "\n";
    const auto quoted = [](const std::string& text) {
      std::string word = "'";
      for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
      return word + "'";
    };
    const std::string command = "hbmprof diff --budget " + quoted(budget_) + " " + quoted(profile) + " 2>&1";
    std::string text;
    FILE* const output = popen(command.c_str(), "r");
    for (int c; output != nullptr && (c = std::fgetc(output)) != EOF;) text += static_cast<char>(c);
    const int status = output == nullptr ? -1 : pclose(output);
    std::remove(profile.c_str());
    if (status == 0) return "";
    return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? text : kNotChecked + text;
  }

  std::vector<Found> AtPeak(const Snapshot& snapshot, size_t device) const {
    std::map<Origin, std::pair<int64_t, int64_t>> sites;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.device != device || !IsDeviceMemory(sample.kind)) continue;
      auto& [bytes, objects] = sites[OriginOf(snapshot, sample)];
      bytes += sample.peak_bytes;
      objects += sample.peak_objects;
    }
    std::vector<Found> found;
    for (const auto& [origin, held] : sites) {
      const auto start = before_.sites.find(origin);
      const auto before = start == before_.sites.end() ? std::pair<int64_t, int64_t>() : start->second;
      if (held.first > before.first) found.push_back({origin, held.first - before.first, held.second - before.second});
    }
    return found;
  }

  const int64_t max_bytes_;
  std::string budget_;  // a file; empty: max_bytes_ is the limit
  const bool overlaps_;
  const Start before_;
};

}  // namespace hbmprof

#endif  // HBMPROF_LEAK_CHECK_H_
