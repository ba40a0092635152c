// Exactness under concurrency: eight threads, each with a shard of its own (or 64, which share the shards), record at
// random on simulated devices that reuse addresses at once, while another takes snapshots and resets peaks. The ledger
// reports the order in which it entered the events. A simple model without threads replays them in that order, and
// every snapshot must equal the model at its position in the order, in every value of every site: in use, at the peak,
// ever allocated.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/simulated_device.h"
#include "hbmprof/tag.h"
#include "src/core/ledger/trace.h"
#include "tests/support/sanitized.h"

namespace hbmprof {
namespace {

#ifdef HBMPROF_THREADS
constexpr int kThreads = HBMPROF_THREADS;
#else
constexpr int kThreads = 8;
#endif
constexpr int kEventsPerThread = (hbmprof_test::kSanitized ? 400000 : 1600000) / kThreads;
constexpr int kDevices = 2;
constexpr int kCallSites = 12;
constexpr std::array<const char*, 4> kPhases = {"", "prefill", "decode", "other_phase"};

// One call that a thread made to the profiler.
struct Operation {
  enum Kind : uint8_t { kAlloc, kFree, kResetPeak, kSnapshot };
  Kind kind;
  uint8_t call_site = 0;
  uint8_t phase = 0;
  uint8_t device = 0;
  MemoryKind memory = MemoryKind::kDevice;
  uint64_t address = 0;
  int64_t bytes = 0;
  size_t snapshot = 0;  // index, for kSnapshot
};

// One call of the hook: the operation's event at its position in the ledger's order.
struct Step {
  uint64_t order;
  const Operation* operation;
  int number;  // of this operation's steps
};

std::atomic<uint64_t> next_order{0};

struct ThreadLog {
  std::deque<Operation> operations;  // stable addresses
  std::vector<Step> steps;
  int steps_of_current = 0;
};
thread_local ThreadLog* log_of_this_thread = nullptr;

Operation& Begin(Operation operation) {
  ThreadLog& log = *log_of_this_thread;
  log.operations.push_back(operation);
  log.steps_of_current = 0;
  return log.operations.back();
}

}  // namespace

namespace internal {
void TraceLedger(uint64_t) {
  ThreadLog* log = log_of_this_thread;
  if (log == nullptr) return;
  log->steps.push_back(
      {next_order.fetch_add(1, std::memory_order_relaxed), &log->operations.back(), log->steps_of_current++});
}
void TraceStep(EventStep) {}
}  // namespace internal

namespace {

// The properties that distinguish samples: call site, phase, device, kind.
using Key = std::tuple<int, std::string, int, MemoryKind>;
using Values = std::array<int64_t, 6>;
enum { kAllocObjects, kAllocBytes, kPeakObjects, kPeakBytes, kInUseObjects, kInUseBytes };

std::string Print(const Key& key) {
  return "site " + std::to_string(std::get<0>(key)) + " phase '" + std::get<1>(key) + "' device " +
         std::to_string(std::get<2>(key)) + " kind " + std::string(MemoryKindName(std::get<3>(key)));
}

// The simplest implementation, without locks and shards: maps, and a copy of everything at each peak.
class NaiveModel {
 public:
  struct Account {
    int64_t in_use = 0;
    int64_t peak = 0;
    int64_t num_allocs = 0;
    int64_t num_live = 0;
    int64_t largest = 0;
    std::map<Key, std::pair<int64_t, int64_t>> at_peak;
  };

  void Apply(const Step& step) {
    const Operation& operation = *step.operation;
    switch (operation.kind) {
      case Operation::kAlloc:
        Enter(operation);
        break;
      case Operation::kFree:
        Leave(operation);
        break;
      case Operation::kResetPeak: {
        Account& account = accounts_[{operation.device, MemorySpace(step.number)}];
        account.peak = account.in_use;
        TakePeak(account, operation.device, MemorySpace(step.number));
        break;
      }
      case Operation::kSnapshot:
        break;
    }
  }

  std::map<Key, Values> Samples() const {
    std::map<Key, Values> samples;
    for (const auto& [key, values] : sites_) {
      samples[key] = {values.alloc_objects, values.alloc_bytes, 0, 0, values.objects, values.bytes};
    }
    for (const auto& [_, account] : accounts_) {
      for (const auto& [key, at_peak] : account.at_peak) {
        samples[key][kPeakObjects] = at_peak.first;
        samples[key][kPeakBytes] = at_peak.second;
      }
    }
    return samples;
  }
  const Account& account(int device, MemorySpace space) { return accounts_[{device, space}]; }

 private:
  struct Site {
    int64_t alloc_objects = 0, alloc_bytes = 0, objects = 0, bytes = 0;
  };
  struct Buffer {
    Key key;
    int64_t bytes;
  };

  void Enter(const Operation& operation) {
    const Key key(operation.call_site, kPhases[operation.phase], operation.device, operation.memory);
    const Buffer buffer{key, operation.bytes};
    ASSERT_TRUE(live_.emplace(operation.address, buffer).second) << "an address is handed out twice";
    Site& site = sites_[key];
    Account& account = accounts_[{operation.device, SpaceOf(operation.memory)}];
    ++site.alloc_objects;
    site.alloc_bytes += operation.bytes;
    ++account.num_allocs;
    account.largest = std::max(account.largest, operation.bytes);
    Add(buffer, account, 1);
    if (account.in_use > account.peak) {
      account.peak = account.in_use;
      TakePeak(account, operation.device, SpaceOf(operation.memory));
    }
  }

  void Leave(const Operation& operation) {
    const auto found = live_.find(operation.address);
    ASSERT_NE(found, live_.end()) << "a free entered the ledger before its allocation";
    const Buffer buffer = found->second;
    live_.erase(found);
    Add(buffer, accounts_[{std::get<2>(buffer.key), SpaceOf(std::get<3>(buffer.key))}], -1);
  }

  void Add(const Buffer& buffer, Account& account, int64_t sign) {
    Site& site = sites_[buffer.key];
    site.objects += sign;
    site.bytes += sign * buffer.bytes;
    account.num_live += sign;
    account.in_use += sign * buffer.bytes;
  }

  void TakePeak(Account& account, int device, MemorySpace space) {
    account.at_peak.clear();
    for (const auto& [key, site] : sites_) {
      if (std::get<2>(key) == device && SpaceOf(std::get<3>(key)) == space) {
        account.at_peak[key] = {site.objects, site.bytes};
      }
    }
  }

  std::map<Key, Site> sites_;
  std::map<uint64_t, Buffer> live_;
  std::map<std::pair<int, MemorySpace>, Account> accounts_;
};

// The call sites. Each is a function of its own, so the first return address of a stack identifies it.
template <int kNumber>
[[gnu::noinline]] bool AllocAt(Profiler& profiler, BufferId id, size_t bytes, const Attributes& attributes) {
  const bool recorded = profiler.RecordAlloc(id, bytes, attributes);
  asm volatile("" ::"r"(kNumber));  // keeps the functions apart, and the call from becoming a jump
  return recorded;
}
using AllocFunction = bool (*)(Profiler&, BufferId, size_t, const Attributes&);
template <size_t... kNumbers>
constexpr std::array<AllocFunction, sizeof...(kNumbers)> AllocFunctions(std::index_sequence<kNumbers...>) {
  return {&AllocAt<kNumbers>...};
}
constexpr auto kAllocAt = AllocFunctions(std::make_index_sequence<kCallSites>());
Options TestOptions() {
  Options options;
  options.max_stack_depth = 1;  // the call site is all that matters here
  return options;
}

// First return address -> call site, found with a separate profiler.
std::map<uint64_t, int> LearnCallSites() {
  std::map<uint64_t, int> sites;
  for (int i = 0; i < kCallSites; ++i) {
    Profiler profiler(TestOptions());
    EXPECT_TRUE(kAllocAt[i](profiler, BufferId(uint64_t{4096}), 4096, {}));
    sites[profiler.TakeSnapshot().stacks.at(0).return_addresses.at(0)] = i;
  }
  EXPECT_EQ(sites.size(), static_cast<size_t>(kCallSites));
  return sites;
}

struct Buffer {
  void* address;
  int device;
  int64_t bytes;
  uint8_t call_site;
  uint8_t phase;
  MemoryKind memory;
};

class Exactness : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kDevices; ++i) {
      SimulatedDevice::Options options;
      options.name = "sim:" + std::to_string(i);
      options.capacity = size_t{256} << 20;
      devices_.push_back(std::move(SimulatedDevice::Create(options).value()));
      device_ids_.push_back(profiler_.Device(options.name));
    }
  }

  Attributes AttributesOf(int device, MemoryKind kind = MemoryKind::kDevice) const {
    Attributes attributes;
    attributes.device = device_ids_[device];
    attributes.kind = kind;
    return attributes;
  }

  void Alloc(std::mt19937_64& random, std::vector<Buffer>* own) {
    static constexpr int64_t kSizes[] = {0, 256, 1000, 4096, 70000};
    static constexpr MemoryKind kKinds[] = {MemoryKind::kDevice, MemoryKind::kDevice, MemoryKind::kManaged,
                                            MemoryKind::kPinnedHost};
    Buffer buffer{};
    buffer.device = static_cast<int>(random() % kDevices);
    buffer.bytes = kSizes[random() % 5];
    buffer.call_site = static_cast<uint8_t>(random() % kCallSites);
    buffer.phase = static_cast<uint8_t>(random() % kPhases.size());
    buffer.memory = kKinds[random() % 4];
    const StreamId stream = random() % 3;
    // A zero-byte record needs an address too.
    const auto real_bytes = static_cast<size_t>(std::max<int64_t>(buffer.bytes, 1));
    SimulatedDevice& device = *devices_[buffer.device];
    const auto address = random() % 2 == 0 ? device.AllocateAsync(real_bytes, stream) : device.Allocate(real_bytes);
    if (!address.ok()) return;  // out of memory: nothing to record
    buffer.address = *address;
    Begin({Operation::kAlloc, buffer.call_site, buffer.phase, static_cast<uint8_t>(buffer.device), buffer.memory,
           reinterpret_cast<uint64_t>(buffer.address), buffer.bytes});
    const auto record = [&] {
      EXPECT_TRUE(kAllocAt[buffer.call_site](profiler_, buffer.address, static_cast<size_t>(buffer.bytes),
                                             AttributesOf(buffer.device, buffer.memory)));
    };
    if (buffer.phase == 0) {
      record();
    } else {
      ScopedTag tag("phase", kPhases[buffer.phase]);
      record();
    }
    own->push_back(buffer);
  }

  void Free(std::mt19937_64& random, std::vector<Buffer>* own) {
    if (own->empty()) return;
    std::swap((*own)[random() % own->size()], own->back());
    const Buffer buffer = own->back();
    const Operation of_buffer{Operation::kFree, buffer.call_site,
                              buffer.phase,     static_cast<uint8_t>(buffer.device),
                              buffer.memory,    reinterpret_cast<uint64_t>(buffer.address),
                              buffer.bytes};
    Begin(of_buffer);
    EXPECT_EQ(profiler_.RecordFree(buffer.address), buffer.bytes);
    own->pop_back();
    SimulatedDevice& device = *devices_[buffer.device];
    const absl::Status status =
        random() % 2 == 0 ? device.Free(buffer.address) : device.FreeAsync(buffer.address, random() % 3);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  void Work(int thread, uint64_t seed, ThreadLog* log) {
    log_of_this_thread = log;
    log->steps.reserve(2 * kEventsPerThread);
    std::mt19937_64 random(seed + static_cast<uint64_t>(thread));
    std::vector<Buffer> own;
    for (int i = 0; i < kEventsPerThread; ++i) {
      // Phases of growth and of shrinking, so that there are many peaks.
      const bool growing = (i / 5000) % 2 == 0;
      const unsigned choice = random() % 100;
      if (choice < (growing ? 50u : 40u)) {
        Alloc(random, &own);
      } else if (choice < 90) {
        Free(random, &own);
      } else if (choice < 96) {
        EXPECT_FALSE(profiler_.RecordFree(BufferId(uint64_t{1} + 2 * (random() % 1000000))));
        foreign_.fetch_add(1, std::memory_order_relaxed);
      } else {  // give a buffer to another thread, or take one
        std::lock_guard<std::mutex> hold(shared_mutex_);
        if (!own.empty() && (shared_.size() < 64 || random() % 2 == 0)) {
          shared_.push_back(own.back());
          own.pop_back();
        } else if (!shared_.empty()) {
          own.push_back(shared_.front());
          shared_.pop_front();
        }
      }
    }
    while (!own.empty()) Free(random, &own);
    log_of_this_thread = nullptr;
  }

  std::map<Key, Values> Reduce(const Snapshot& snapshot) const {
    std::map<Key, Values> samples;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      const auto& pcs = snapshot.stacks.at(sample.stack).return_addresses;
      const std::string phase = sample.tags.empty() ? "" : sample.tags.at(0).second;
      const std::string& device = snapshot.devices.at(sample.device).name;
      const Key key(call_sites_.at(pcs.at(0)), phase, device.back() - '0', sample.kind);
      const bool is_new = samples
                              .emplace(key, Values{sample.alloc_objects, sample.alloc_bytes, sample.peak_objects,
                                                   sample.peak_bytes, sample.inuse_objects, sample.inuse_bytes})
                              .second;
      EXPECT_TRUE(is_new) << "two samples of " << Print(key);
    }
    return samples;
  }

  const std::map<uint64_t, int> call_sites_ = LearnCallSites();
  std::vector<std::unique_ptr<SimulatedDevice>> devices_;
  Profiler profiler_{TestOptions()};
  std::vector<DeviceId> device_ids_;
  std::mutex shared_mutex_;
  std::deque<Buffer> shared_;
  std::atomic<int64_t> foreign_{0};
};

TEST_F(Exactness, EverySnapshotEqualsTheNaiveModel) {
  const char* chosen = std::getenv("HBMPROF_TEST_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
  std::printf("seed %llu (HBMPROF_TEST_SEED repeats it)\n", static_cast<unsigned long long>(seed));

  std::vector<ThreadLog> logs(kThreads + 1);
  ThreadLog& main_log = logs[kThreads];
  log_of_this_thread = &main_log;

  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Work(thread, seed, &logs[thread]);
      running.fetch_sub(1);
    });
  }
  std::vector<Snapshot> snapshots;
  std::mt19937_64 random(seed);
  const auto take = [&] {
    Begin({Operation::kSnapshot}).snapshot = snapshots.size();
    snapshots.push_back(profiler_.TakeSnapshot());
  };
  while (running.load() > 0) {
    if (snapshots.size() < 200) take();
    if (random() % 4 == 0) {
      const int device = static_cast<int>(random() % kDevices);
      Begin({Operation::kResetPeak, 0, 0, static_cast<uint8_t>(device)});
      profiler_.ResetPeak(device_ids_[device]);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
  }
  for (std::thread& thread : threads) thread.join();
  take();
  while (!shared_.empty()) {
    std::vector<Buffer> rest = {shared_.front()};
    shared_.pop_front();
    while (!rest.empty()) Free(random, &rest);
  }
  take();
  log_of_this_thread = nullptr;

  std::vector<Step> steps;
  for (const ThreadLog& log : logs) steps.insert(steps.end(), log.steps.begin(), log.steps.end());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.order < b.order; });
  NaiveModel model;
  for (const Step& step : steps) {
    model.Apply(step);
    ASSERT_FALSE(HasFatalFailure());
    if (step.operation->kind != Operation::kSnapshot) continue;
    const Snapshot& snapshot = snapshots[step.operation->snapshot];
    const std::map<Key, Values> expected = model.Samples();
    const std::map<Key, Values> actual = Reduce(snapshot);
    for (const auto& [key, values] : actual) {
      const auto wanted = expected.find(key);
      ASSERT_NE(wanted, expected.end()) << Print(key);
      ASSERT_EQ(values, wanted->second) << Print(key) << ", snapshot " << step.operation->snapshot;
    }
    for (const auto& [key, values] : expected) {
      if (values != Values{}) {
        ASSERT_EQ(actual.count(key), 1u) << Print(key);
      }
    }
    for (const Snapshot::Device& device : snapshot.devices) {
      for (int space = 0; space < kMemorySpaceCount; ++space) {
        const NaiveModel::Account& account = model.account(device.name.back() - '0', MemorySpace(space));
        const DeviceStats& stats = device.spaces[space];
        ASSERT_EQ(stats.bytes_in_use, account.in_use);
        ASSERT_EQ(stats.peak_bytes_in_use, account.peak);
        ASSERT_EQ(stats.num_allocs, account.num_allocs);
        ASSERT_EQ(stats.num_live, account.num_live);
        ASSERT_EQ(stats.largest_alloc_size, account.largest);
      }
    }
  }
  for (const DeviceId device : device_ids_) {
    EXPECT_EQ(profiler_.Stats(device).bytes_in_use, 0);
    EXPECT_EQ(profiler_.Stats(device).num_live, 0);
  }
  const TrackerStats tracker = profiler_.GetTrackerStats();
  EXPECT_EQ(tracker.foreign_frees, foreign_.load());
  EXPECT_EQ(tracker.replaced_records, 0);
  EXPECT_EQ(tracker.dropped_records, 0);
  EXPECT_GT(snapshots.size(), 10u);
  std::printf("%zu events, %zu snapshots, each equal to the model\n", steps.size(), snapshots.size());
}

}  // namespace
}  // namespace hbmprof
