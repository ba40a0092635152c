// The verdict and the text of an out-of-memory report, for made states of a device.
#include "src/export/out_of_memory_report.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr uint64_t kNamed = Snapshot::kNamedFrame;

// A device of 40 GiB, of which this process has recorded 30 GiB, and a request of 2 GiB.
OutOfMemory Failure() {
  OutOfMemory failure;
  failure.call = "cuMemAlloc_v2";
  failure.requested = 2 * kGiB;
  failure.device = "GPU:0";
  failure.stats.bytes_limit = 40 * kGiB;
  failure.stats.bytes_in_use = 30 * kGiB;
  failure.stats.peak_bytes_in_use = 31 * kGiB;
  failure.stats.bytes_free = kGiB;
  failure.stats.driver_scope = DriverScope::kProcess;
  failure.stats.driver_bytes_in_use = 30 * kGiB;
  return failure;
}

struct Case {
  const char* name;
  OutOfMemoryCause cause;
  void (*change)(OutOfMemory*);
  const char* figure;  // in the verdict's text
};

class JudgeOutOfMemoryTest : public ::testing::TestWithParam<Case> {};

TEST_P(JudgeOutOfMemoryTest, NamesTheCauseAndItsFigure) {
  OutOfMemory failure = Failure();
  GetParam().change(&failure);
  const OutOfMemoryVerdict verdict = JudgeOutOfMemory(failure);
  EXPECT_EQ(verdict.cause, GetParam().cause) << verdict.text;
  EXPECT_THAT(verdict.text, HasSubstr(GetParam().figure));
}

const Case kCases[] = {
    {"Full", OutOfMemoryCause::kFull, [](OutOfMemory*) {}, "30.00 GiB of 40.00 GiB"},
    {"NearlyTheNextUnit", OutOfMemoryCause::kTooLarge, [](OutOfMemory* f) { f->requested = (kGiB << 10) - 1; },
     "1.00 TiB"},
    {"TooLarge", OutOfMemoryCause::kTooLarge, [](OutOfMemory* f) { f->requested = 41 * kGiB; }, "41.00 GiB"},
    {"Fragmented", OutOfMemoryCause::kFragmented,
     [](OutOfMemory* f) {
       f->stats.bytes_free = 3 * kGiB;
       f->stats.largest_free_block_bytes = 512 * kMiB;
     },
     "512.00 MiB"},
    {"FragmentedOrLimited", OutOfMemoryCause::kFragmented, [](OutOfMemory* f) { f->stats.bytes_free = 3 * kGiB; },
     "3.00 GiB are free"},
    {"Limit", OutOfMemoryCause::kLimit,
     [](OutOfMemory* f) {
       f->stats.bytes_free = 3 * kGiB;
       f->stats.largest_free_block_bytes = 3 * kGiB;
     },
     "a limit"},
    {"PoolLimit", OutOfMemoryCause::kLimit,
     [](OutOfMemory* f) {
       f->pool_limit = 3 * kGiB;
       f->pool_in_use = 1 * kGiB + 1;
     },
     "may have 3.00 GiB in use and has 1.00 GiB"},
    {"RequestOfAnySizeFromAPoolWithALimit", OutOfMemoryCause::kLimit,
     [](OutOfMemory* f) {
       f->requested = INT64_MAX;
       f->pool_limit = 3 * kGiB;
       f->pool_in_use = 1 * kGiB;
     },
     "may have 3.00 GiB in use and has 1.00 GiB"},
    {"PoolBelowItsLimit", OutOfMemoryCause::kFull,
     [](OutOfMemory* f) {
       f->pool_limit = 3 * kGiB;
       f->pool_in_use = 1 * kGiB;
     },
     "full"},
    {"ControlGroupOnDevice", OutOfMemoryCause::kLimit,
     [](OutOfMemory* f) {
       f->device_group_limit = 32 * kGiB;
       f->device_group_in_use = 31 * kGiB;
     },
     "may use 32.00 GiB of the device and uses 31.00 GiB"},
    {"ControlGroupOnDeviceBelowItsLimit", OutOfMemoryCause::kFull,
     [](OutOfMemory* f) {
       f->device_group_limit = 32 * kGiB;
       f->device_group_in_use = 30 * kGiB;
     },
     "full"},
    {"ControlGroupOnDeviceAndIdlePool", OutOfMemoryCause::kIdlePool,
     [](OutOfMemory* f) {
       f->device_group_limit = 32 * kGiB;
       f->device_group_in_use = 31 * kGiB;
       f->stats.idle_bytes = kGiB;
     },
     "hold 1.00 GiB of idle memory"},
    {"MemoryOfTheHost", OutOfMemoryCause::kHostMemory,
     [](OutOfMemory* f) {
       f->uses_host_memory = true;
       f->stats.bytes_in_use = 5 * kGiB;
       f->stats.driver_bytes_in_use = 5 * kGiB;
     },
     "the memory of the host, of which 1.00 GiB are free; this process has 5.00 GiB of 40.00 GiB on the device"},
    {"MemoryOfTheHostHeldByThisProcess", OutOfMemoryCause::kFull, [](OutOfMemory* f) { f->uses_host_memory = true; },
     "full"},
    {"Addresses", OutOfMemoryCause::kHostLimit,
     [](OutOfMemory* f) {
       f->stats.bytes_free = 3 * kGiB;
       f->address_space_limit = 50 * kGiB;
       f->address_space_in_use = 49 * kGiB;
     },
     "50.00 GiB of virtual memory and has 49.00 GiB. Raise the limit with `ulimit -v`"},
    {"EnoughAddresses", OutOfMemoryCause::kFragmented,
     [](OutOfMemory* f) {
       f->stats.bytes_free = 3 * kGiB;
       f->address_space_limit = 51 * kGiB;
       f->address_space_in_use = 49 * kGiB;
     },
     "3.00 GiB are free"},
    {"IdleSegments", OutOfMemoryCause::kIdlePool, [](OutOfMemory* f) { f->stats.idle_bytes = kGiB; },
     "hold 1.00 GiB of idle memory, which would be enough together with the free memory. Release it before the call: "
     "the "
     "pool's own function"},
    {"IdleSegmentsWithBlocks", OutOfMemoryCause::kFull,
     [](OutOfMemory* f) {
       f->stats.idle_bytes = kGiB;
       f->is_trimmed = true;  // PyTorch returns what it can before it fails
     },
     "full"},
    {"IdleDriverPool", OutOfMemoryCause::kIdlePool, [](OutOfMemory* f) { f->stats.driver_cache_bytes = 5 * kGiB; },
     "Release it before the call: cudaMemPoolTrimTo (memory of graphs: cudaDeviceGraphMemTrim)."},
    {"IdleSegmentsAndDriverPool", OutOfMemoryCause::kIdlePool,
     [](OutOfMemory* f) {
       f->stats.idle_bytes = kGiB / 2;
       f->stats.driver_cache_bytes = kGiB / 2;
     },
     "cudaDeviceGraphMemTrim), and the pool's own function"},
    {"FreeBytesNotReported", OutOfMemoryCause::kFragmented,
     [](OutOfMemory* f) {
       f->stats.bytes_free.reset();  // 10 GiB of the 40 are not in use
       f->stats.largest_free_block_bytes = kGiB;
     },
     "10.00 GiB are free, but the largest free block has 1.00 GiB"},
    {"IdlePoolTooSmall", OutOfMemoryCause::kFull, [](OutOfMemory* f) { f->stats.idle_bytes = kGiB - 1; }, "full"},
    {"OtherProcesses", OutOfMemoryCause::kOtherProcesses,
     [](OutOfMemory* f) {
       f->stats.bytes_in_use = 5 * kGiB;
       f->stats.driver_bytes_in_use = 5 * kGiB;
     },
     "34.00 GiB"},
    {"Unaccounted", OutOfMemoryCause::kUnaccounted,
     [](OutOfMemory* f) {
       f->stats.bytes_in_use = 5 * kGiB;
       f->stats.unaccounted = 25 * kGiB;
     },
     "hbmprof run"},
    {"UnaccountedOrOtherProcesses", OutOfMemoryCause::kUnaccounted,
     [](OutOfMemory* f) {
       f->stats.driver_scope = DriverScope::kDevice;
       f->stats.bytes_in_use = 5 * kGiB;
       f->stats.driver_bytes_in_use = 39 * kGiB;
       f->stats.unaccounted = 34 * kGiB;
     },
     "other processes, or to calls"},
    {"NearlyAllOfAnEmptyDevice", OutOfMemoryCause::kFull,
     [](OutOfMemory* f) {
       f->requested = 40 * kGiB;
       f->stats.bytes_in_use = kGiB;
       f->stats.driver_bytes_in_use = 3 * kGiB;
       f->stats.unaccounted = 2 * kGiB;
       f->stats.bytes_free = 37 * kGiB;
     },
     "only 37.00 GiB are free: the recorded buffers of this process hold 1.00 GiB of 40.00 GiB"},
    {"TheLargestOfSeveralParts", OutOfMemoryCause::kFull,
     [](OutOfMemory* f) {
       f->stats.bytes_in_use = 15 * kGiB;
       f->stats.driver_bytes_in_use = 25 * kGiB;
       f->stats.unaccounted = 10 * kGiB;
     },
     "only 1.00 GiB are free: the recorded buffers of this process hold 15.00 GiB of 40.00 GiB"},
    {"UnknownDevice", OutOfMemoryCause::kUnknown, [](OutOfMemory* f) { f->stats = DeviceStats(); }, "does not report"},
    {"UnknownRequest", OutOfMemoryCause::kFull, [](OutOfMemory* f) { f->requested.reset(); }, "30.00 GiB of 40.00 GiB"},
    {"LockedMemory", OutOfMemoryCause::kHostLimit,
     [](OutOfMemory* f) {
       f->space = MemorySpace::kPinnedHost;
       f->memory_lock_limit = 31 * kGiB;
     },
     "ulimit -l"},
    {"ControlGroup", OutOfMemoryCause::kHostLimit,
     [](OutOfMemory* f) {
       f->space = MemorySpace::kPinnedHost;
       f->memory_lock_limit = 64 * kGiB;
       f->cgroup_limit = 36 * kGiB;
       f->cgroup_in_use = 35 * kGiB;
     },
     "36.00 GiB"},
    {"ManagedMemory", OutOfMemoryCause::kHostLimit,
     [](OutOfMemory* f) {
       f->space = MemorySpace::kManaged;
       f->cgroup_limit = 36 * kGiB;
       f->cgroup_in_use = 35 * kGiB;
     },
     "36.00 GiB"},
    {"HostWithoutLimit", OutOfMemoryCause::kUnknown, [](OutOfMemory* f) { f->space = MemorySpace::kPinnedHost; },
     "no limit"},
};
INSTANTIATE_TEST_SUITE_P(Cases, JudgeOutOfMemoryTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(OutOfMemorySummaryTest, ShowsRequestDeviceProcessAndOthers) {
  OutOfMemory failure = Failure();
  failure.tags = "model=llama, phase=\x1b[2Jdecode";
  failure.stats.idle_bytes = 256 * kMiB;
  failure.unreported_failures = 3;
  EXPECT_EQ(OutOfMemorySummary(failure),
            "hbmprof: out of memory on GPU:0: cuMemAlloc_v2 of 2.00 GiB failed (model=llama, phase=?[2Jdecode)\n"
            "  verdict    the device is full: the recorded buffers of this process hold 30.00 GiB of 40.00 GiB.\n"
            "  device     40.00 GiB in all, 1.00 GiB free\n"
            "  recorded   30.00 GiB of this process, peak 31.00 GiB; 256.00 MiB idle in pools\n"
            "  others     9.00 GiB of other processes\n"
            "  before     3 failures since the last report\n");
}

TEST(OutOfMemorySummaryTest, DeviceIsCalledFullOnlyIfTheRequestIsKnownNotToFit) {
  OutOfMemory failure = Failure();
  EXPECT_THAT(JudgeOutOfMemory(failure).text, HasSubstr("full"));
  failure.requested.reset();
  EXPECT_THAT(JudgeOutOfMemory(failure).text, Not(HasSubstr("full")));
}

TEST(OutOfMemorySummaryTest, LeavesOutUnknownValues) {
  OutOfMemory failure;
  failure.device = "TPU_0";
  EXPECT_EQ(OutOfMemorySummary(failure),
            "hbmprof: out of memory on TPU_0: an allocation failed\n"
            "  verdict    the device does not report its capacity.\n"
            "  recorded   0 B of this process, peak 0 B\n");
}

// Names each address by its number.
class NumberSymbolizer : public Symbolizer {
 public:
  std::vector<Name> Symbolize(const std::vector<Snapshot::Module>&, const std::vector<uint64_t>& addresses) override {
    std::vector<Name> names;
    for (const uint64_t address : addresses) {
      texts_.push_back(std::make_unique<std::string>("f" + std::to_string(address)));
      names.push_back({"", address == 998 ? std::string_view() : std::string_view(*texts_.back())});
    }
    return names;
  }

 private:
  std::vector<std::unique_ptr<std::string>> texts_;
};

// Stack i holds (i + 1) MiB in two samples on device 1, and 1 GiB of pinned memory.
Snapshot TwelveStacks() {
  Snapshot snapshot;
  snapshot.devices.resize(2);
  snapshot.devices[1].name = "GPU:1";
  for (uint32_t i = 0; i < 12; ++i) {
    snapshot.stacks.push_back({{10 * i + 1, 10 * i + 2, 999, 10 * i + 4, 10 * i + 5}, false});
    Snapshot::Sample sample;
    sample.device = 1;
    sample.stack = i;
    sample.inuse_bytes = (i + 1) * kMiB - 1;
    sample.inuse_objects = 1;
    snapshot.samples.push_back(sample);
    sample.inuse_bytes = 1;
    snapshot.samples.push_back(sample);
    sample.kind = MemoryKind::kPinnedHost;
    sample.inuse_bytes = kGiB;
    snapshot.samples.push_back(sample);
    sample.kind = MemoryKind::kDevice;
    sample.device = 0;
    snapshot.samples.push_back(sample);
  }
  snapshot.devices[1].spaces[0].bytes_in_use = 78 * kMiB;
  return snapshot;
}

TEST(OutOfMemoryHoldersTest, ListsTheTenLargestOfTheDeviceAndSpace) {
  NumberSymbolizer symbolizer;
  const std::string text = OutOfMemoryHolders(TwelveStacks(), 1, MemorySpace::kDevice, &symbolizer, nullptr);
  EXPECT_THAT(text, MatchesRegex("  in use by call stack, largest first:\n"
                                 "   12.00 MiB  15.4 %        2 live  f110 < f111 < f113 < f114\n"
                                 "   11.00 MiB  14.1 %        2 live  f100 < f101 < f103 < f104\n(.*\n)*"
                                 "    3.00 MiB   3.8 %        2 live  f20 < f21 < f23 < f24\n"));
}

TEST(OutOfMemoryStackTest, NamesTheCallersOfTheRequest) {
  Snapshot snapshot;
  snapshot.named_frames = {{"answer", "/srv/serve.py", 41, 30}, {"main", "/srv/serve.py", 3, 1}};
  snapshot.stacks = {{{21}, false}, {{kNamed | 0, kNamed | 1}, false}, {{}, false}};
  EXPECT_EQ(OutOfMemoryStack(snapshot, 1, nullptr), "answer (serve.py:41) < main (serve.py:3)");
  EXPECT_EQ(OutOfMemoryStack(snapshot, 2, nullptr), "(no call stack)");
}

TEST(OutOfMemoryHoldersTest, ShowsTheNamesOfNamedFrames) {
  Snapshot snapshot = TwelveStacks();
  snapshot.named_frames = {{"forward", "/srv/model.py", 41, 30}, {"main", "/srv/main.py", 3, 1}};
  snapshot.stacks[11].return_addresses = {21, kNamed | 0, 31, kNamed | 1};
  NumberSymbolizer symbolizer;
  const std::string text = OutOfMemoryHolders(snapshot, 1, MemorySpace::kDevice, &symbolizer, nullptr);
  EXPECT_THAT(text, HasSubstr(" 2 live  f20 < forward (model.py:41) < f30 < main (main.py:3)\n"));
  EXPECT_THAT(text, HasSubstr(" 2 live  f100 < f101 < f103 < f104\n")) << "the stacks behind it";
}

// A symbolizer with a name for some addresses.
class ListedNames : public Symbolizer {
 public:
  explicit ListedNames(std::map<uint64_t, const char*> names) : names_(std::move(names)) {}
  std::vector<Name> Symbolize(const std::vector<Snapshot::Module>&, const std::vector<uint64_t>& addresses) override {
    std::vector<Name> names;
    for (const uint64_t address : addresses) names.push_back({"", names_[address] == nullptr ? "" : names_[address]});
    return names;
  }

 private:
  std::map<uint64_t, const char*> names_;
};

// A snapshot with one sample of 1 MiB for each stack.
Snapshot WithStacks(const std::vector<std::vector<uint64_t>>& stacks) {
  Snapshot snapshot;
  snapshot.devices.resize(1);
  snapshot.devices[0].spaces[0].bytes_in_use = static_cast<int64_t>(stacks.size()) * kMiB;
  snapshot.modules = {{0x1000, 0x2000, 0, 0x1000, "/srv/app", ""},
                      {0x10000, 0x20000, 0, 0x10000, "/usr/lib/libffi.so.8", ""},
                      {0x30000, 0x40000, 0, 0x30000, "/x/site-packages/torch/lib/libtorch_cpu.so", ""},
                      {0x50000, 0x60000, 0, 0x50000, "/usr/bin/python3.11", ""}};
  for (const std::vector<uint64_t>& stack : stacks) {
    Snapshot::Sample& sample = snapshot.samples.emplace_back();
    sample.stack = static_cast<uint32_t>(snapshot.stacks.size());
    sample.inuse_bytes = kMiB;
    sample.inuse_objects = 1;
    snapshot.stacks.push_back({stack, false});
  }
  return snapshot;
}

TEST(OutOfMemoryHoldersTest, RowBeginsAtOwnCodeInCpp) {
  const Snapshot snapshot = WithStacks({{0x16f7a, 0x1011, 0x1021, 0x1031, 0x10100}, {0x1012, 0x1021, 0x1031}});
  ListedNames names({{0x1010, "std::vector::resize"}, {0x1020, "app::Grow"}, {0x1030, "main"}, {0x100ff, "_start"}});
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr("    1.00 MiB  50.0 %        1 live  app::Grow < main\n"
                        "    1.00 MiB  50.0 %        1 live  app+0x11 < app::Grow < main\n"));
}

TEST(OutOfMemoryHoldersTest, RowBeginsAtOwnCodeInPython) {
  Snapshot snapshot = WithStacks({{0x16f7a, 0x10101, kNamed | 0, 0x50101, kNamed | 1}});
  snapshot.named_frames = {{"load", "/srv/model.py", 41, 30}, {"<module>", "/srv/main.py", 3, 1}};
  ListedNames names({{0x10100, "ffi_call"}, {0x50100, "cfunction_call"}});
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr(" 1 live  load (model.py:41) < <module> (main.py:3)\n"));
}

// Two paths through PyTorch to one line of the user are one row.
TEST(OutOfMemoryHoldersTest, RowBeginsAtOwnCodeInPyTorch) {
  Snapshot snapshot = WithStacks({{0x30101, 0x30201, 0x50101, kNamed | 0, kNamed | 1, kNamed | 2},
                                  {0x30101, 0x30301, 0x50101, kNamed | 0, kNamed | 1, kNamed | 2},
                                  {0x30101, 0x30301, 0x50201}});
  snapshot.named_frames = {{"Module._call_impl", "/x/site-packages/torch/nn/modules/module.py", 1562, 1500},
                           {"forward", "/srv/model.py", 17, 10},
                           {"Thread.run", "/usr/lib/python3.11/threading.py", 982, 970}};
  ListedNames names({{0x30100, "c10::cuda::CUDACachingAllocator::Native::malloc"},
                     {0x30200, "at::empty"},
                     {0x30300, "at::native::zeros"},
                     {0x50100, "cfunction_call"}});
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr("    2.00 MiB  66.7 %        2 live  forward (model.py:17)\n"
                        "    1.00 MiB  33.3 %        1 live  at::native::zeros < python3.11+0x200\n"));
}

// PyTorch's tensor, NCCL's buffer in PyTorch's pool, own code, and PyTorch's idle memory; and what only the driver
// reports.
TEST(OutOfMemoryHoldersTest, ListsTheLibraries) {
  Snapshot snapshot =
      WithStacks({{0x30101, 0x30201, kNamed | 0}, {0x30101, 0x30301, kNamed | 0}, {0x1011}, {kNamed | 1}});
  snapshot.named_frames = {{"train", "/srv/train.py", 17, 10}, {"[idle memory of pytorch]", "", 0, 0}};
  ListedNames names({{0x30100, "c10::cuda::CUDACachingAllocator::Native::malloc"},
                     {0x30200, "at::empty"},
                     {0x30300, "c10d::ProcessGroupNCCL::allgather"}});
  snapshot.samples[0].inuse_bytes = 4 * kMiB;
  snapshot.samples[3].kind = MemoryKind::kPool;
  DeviceStats& stats = snapshot.devices[0].spaces[0];
  stats.bytes_in_use = 7 * kMiB;
  stats.unaccounted = kMiB / 2;
  stats.driver_scope = DriverScope::kProcess;
  stats.driver_cache_bytes = kMiB / 2;
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr("  in use by library, largest first:\n"
                        "    4.00 MiB  50.0 %  PyTorch\n"
                        "    1.00 MiB  12.5 %  NCCL\n"
                        "    1.00 MiB  12.5 %  idle memory of pools\n"
                        "    1.00 MiB  12.5 %  own code\n"
                        "  512.00 KiB   6.2 %  CUDA memory pools (idle)\n"
                        "  512.00 KiB   6.2 %  unaccounted (contexts, driver, calls not recorded)\n"
                        "  in use by call stack, largest first:\n"));
  stats.driver_scope = DriverScope::kDevice;
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr("  unaccounted (driver and other processes)\n"));
}

TEST(OutOfMemoryHoldersTest, StacksBeyondTheLimitAreOneHolder) {
  std::vector<std::vector<uint64_t>> stacks;
  for (uint64_t i = 0; i < 4098; ++i) stacks.push_back({0x1000000 + i});
  EXPECT_THAT(OutOfMemoryHolders(WithStacks(stacks), 0, MemorySpace::kDevice, nullptr, nullptr),
              HasSubstr("    4.00 GiB 100.0 %  unknown\n"
                        "    2.00 MiB   0.0 %  other call stacks\n"));
}

TEST(OutOfMemoryHoldersTest, FrameWithoutANameShowsItsObject) {
  ListedNames names({{0x10100, "ffi_call"}});
  EXPECT_THAT(OutOfMemoryHolders(WithStacks({{0x16f7a, 0x10101, 0x900001}}), 0, MemorySpace::kDevice, &names, nullptr),
              HasSubstr(" 1 live  libffi.so.8+0x6f79 < ffi_call < 0x900000\n"));
}

TEST(OutOfMemoryHoldersTest, ShowsGrowthSinceTheLastProfile) {
  const Snapshot snapshot = TwelveStacks();
  const uint64_t largest = HolderKey(snapshot, 11, 1, MemorySpace::kDevice);
  const auto before = [&](uint64_t key) { return std::optional<int64_t>(key == largest ? 10 * kMiB : 20 * kMiB); };
  const std::string text = OutOfMemoryHolders(snapshot, 1, MemorySpace::kDevice, nullptr, before);
  EXPECT_THAT(text, HasSubstr("   12.00 MiB  15.4 %        2 live     +2.00 MiB  0x6e < 0x6f"));
  EXPECT_THAT(text, HasSubstr("   11.00 MiB  14.1 %        2 live     -9.00 MiB  0x64 < 0x65"));
}

TEST(OutOfMemoryHoldersTest, EqualInnermostFunctionsShareALine) {
  Snapshot snapshot = TwelveStacks();
  snapshot.stacks[0].return_addresses = snapshot.stacks[11].return_addresses;
  snapshot.stacks[0].return_addresses.push_back(7);  // beyond the frames that are shown
  NumberSymbolizer symbolizer;
  EXPECT_THAT(OutOfMemoryHolders(snapshot, 1, MemorySpace::kDevice, &symbolizer, nullptr),
              HasSubstr("   13.00 MiB  16.7 %        4 live  f110 < f111 < f113 < f114\n"));
}

TEST(OutOfMemoryHoldersTest, EmptyIfNothingIsInUse) {
  EXPECT_EQ(OutOfMemoryHolders(TwelveStacks(), 1, MemorySpace::kManaged, nullptr, nullptr), "");
}

TEST(OutOfMemoryKindsAndProcessesTest, ShowsKindsAndOtherProcesses) {
  Snapshot snapshot;
  snapshot.devices.resize(2);
  for (const auto& [device, kind, bytes] :
       {std::tuple(0, MemoryKind::kDevice, 3 * kMiB), std::tuple(0, MemoryKind::kPool, kMiB),
        std::tuple(0, MemoryKind::kPool, kMiB), std::tuple(1, MemoryKind::kVmm, kMiB)}) {
    Snapshot::Sample& sample = snapshot.samples.emplace_back();
    sample.device = static_cast<uint32_t>(device);
    sample.kind = kind;
    sample.inuse_bytes = bytes;
  }
  snapshot.devices[0].processes = {{10, 5 * kMiB, true}, {11, kGiB, false}, {12, 2 * kGiB, false}, {13, {}, false}};
  const auto name_of = [](int64_t pid) { return pid == 12 ? std::string("serve\033r") : ""; };
  EXPECT_EQ(OutOfMemoryKindsAndProcesses(snapshot, 0, name_of),
            "  by kind    3.00 MiB device, 2.00 MiB pool (idle)\n"
            "  process    2.00 GiB of process 12 (serve?r)\n"
            "  process    1.00 GiB of process 11\n"
            "  process    an unknown amount of process 13\n");
  EXPECT_EQ(OutOfMemoryKindsAndProcesses(snapshot, 1, name_of), "") << "one kind, no processes";
}

TEST(OutOfMemoryKindsAndProcessesTest, IdsOfAnotherNameSpaceHaveNoNames) {
  Snapshot snapshot;
  snapshot.devices.resize(1);
  for (int64_t pid = 1; pid <= 8; ++pid) snapshot.devices[0].processes.push_back({pid, pid * kMiB, false});
  const std::string text = OutOfMemoryKindsAndProcesses(snapshot, 0, [](int64_t) { return std::string("wrong"); });
  EXPECT_THAT(text, HasSubstr("  process    8.00 MiB of process 8\n"));
  EXPECT_THAT(text, HasSubstr("  process    ... and 3 more\n"));
}

}  // namespace
}  // namespace hbmprof::internal
