// DriverAdapter without a driver: physical memory and mappings, graphs, contexts, pools, code, failures, and nested
// calls.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/backends/calls/adapter.h"
#include "src/backends/cuda/driver/driver_structs.h"

namespace hbmprof::internal {
namespace {

using cuda_driver::kSuccess;
constexpr int kFails = 2;
constexpr int64_t kMiB = 1 << 20;

// Queries with results that a test sets.
class Answers : public DriverQueries {
 public:
  explicit Answers(Profiler& profiler) : profiler_(profiler) {}
  int CurrentDevice() override { return device; }
  const void* CurrentContext() override { return context; }
  Pointer DescribePointer(const void*) override { return pointer; }
  size_t AddressRangeBytes(const void*) override { return 4096; }
  Capture CaptureOf(const DriverStream& stream) override {
    asked_per_thread = stream.per_thread_default;
    return capture;
  }
  bool PrimaryContextActive(int) override { return primary_active; }
  std::optional<int64_t> FreeBytes() override { return free_bytes; }
  DeviceId Device(int ordinal) override {
    ++devices_asked;
    return ordinal < 0 ? kDefaultDevice : profiler_.Device("GPU:" + std::to_string(ordinal));
  }
  AllocatorId StreamOrderedAllocator() override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return profiler_.Allocator("cudaMallocAsync");
  }
  void KeepBaseline(DeviceId) override { ++baselines; }

  int device = 0;
  const void* context = nullptr;
  Pointer pointer;
  Capture capture;
  bool primary_active = false;
  std::atomic<bool> asked_per_thread{false};
  std::optional<int64_t> free_bytes;
  std::atomic<int> baselines{0};
  std::atomic<int> devices_asked{0};
  // Called in StreamOrderedAllocator(): what another thread does at that time.
  std::function<void()> meanwhile;

 private:
  Profiler& profiler_;
};

// The calls of CUDA's table.
class CudaCalls : public DriverAdapter {
 public:
  using DriverAdapter::DriverAdapter;
  template <typename Call>
  int CreatePool(const Call& call, void* const* pool, const cuda_driver::MemPoolProps* properties) {
    return DriverAdapter::CreatePool(call, pool, [&] { return PoolOf(*properties); });
  }
  template <typename Call>
  int CreatePhysical(const Caller& caller, const Call& call, const Handle* handle, size_t bytes,
                     const cuda_driver::MemAllocationProp* properties) {
    return DriverAdapter::CreatePhysical(caller, call, handle, bytes, [&] { return PlaceOf(properties->location); });
  }
  template <typename Call>
  int AddNode(const Caller& caller, const Call& call, const void* graph, const cuda_driver::GraphNodeParams* params) {
    return DriverAdapter::AddNode(caller, call, graph, [&] { return NodeOf(*params); });
  }
  template <typename Call>
  int AddAllocNode(const Caller& caller, const Call& call, const void* graph,
                   const cuda_driver::MemAllocNodeParams* params) {
    return DriverAdapter::AddNode(caller, call, graph, [&] { return NodeOf(*params); });
  }
};

class CudaDriverAdapterTest : public ::testing::Test {
 protected:
  int64_t InUse(const std::string& device = "GPU:0", MemorySpace space = MemorySpace::kDevice) {
    return profiler_.Stats(profiler_.Device(device), space).bytes_in_use;
  }
  int64_t Live() { return profiler_.GetTrackerStats().live_records; }
  int64_t ForeignFrees() { return profiler_.GetTrackerStats().foreign_frees; }
  int64_t RefusedFrees() { return profiler_.GetTrackerStats().refused_frees; }

  int64_t GraphBytes(int device) { return adapter_.GraphBytes(profiler_.Device("GPU:" + std::to_string(device))); }

  int Alloc(uint64_t address, size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
    return adapter_.Allocate(
        caller_, [] { return kSuccess; },
        [&] {
          return DriverBuffer{BufferId(address), bytes, kind};
        });
  }
  int AllocAsync(uint64_t address, size_t bytes, bool per_thread = false) {
    const cuda_driver::CUdeviceptr out = address;
    return adapter_.AllocateAsync(caller_, [] { return kSuccess; }, &out, bytes, {nullptr, per_thread});
  }
  int Free(uint64_t address, int result = kSuccess) {
    return adapter_.Free(BufferId(address), [=] { return result; });
  }
  int FreeAsync(uint64_t address) {
    return adapter_.FreeAsync([] { return kSuccess; }, address, {});
  }
  // Alternates with the function for nodes of any type.
  void AddAllocNode(uintptr_t graph, uint64_t address, size_t bytes) {
    cuda_driver::GraphNodeParams params = {};
    params.type = cuda_driver::kGraphNodeMemAlloc;
    params.alloc.pool.location = {cuda_driver::kLocationDevice, 1};
    params.alloc.bytes = bytes;
    const auto makes = [&] {
      params.alloc.address = address;
      return kSuccess;
    };
    any_type_ = !any_type_;
    if (any_type_) {
      adapter_.AddNode(caller_, makes, Name(graph), &params);
    } else {
      adapter_.AddAllocNode(caller_, makes, Name(graph), &params.alloc);
    }
  }
  void AddFreeNode(uintptr_t graph, uint64_t address) {
    cuda_driver::GraphNodeParams params = {};
    params.type = cuda_driver::kGraphNodeMemFree;
    params.freed = address;
    adapter_.AddNode(
        caller_, [] { return kSuccess; }, Name(graph), &params);
  }
  // Moves `graph` into `parent`.
  void Move(uintptr_t graph, uintptr_t parent) {
    cuda_driver::GraphNodeParams params = {};
    params.type = cuda_driver::kGraphNodeGraph;
    params.child = {Handle(graph), cuda_driver::kOwnershipMove};
    adapter_.AddNode(
        caller_, [] { return kSuccess; }, Name(parent), &params);
  }
  void Instantiate(uintptr_t graph, uintptr_t executable) {
    void* const out = Handle(executable);
    adapter_.Instantiate([] { return kSuccess; }, Name(graph), &out);
  }
  int Launch(uintptr_t executable, int result = kSuccess) {
    return adapter_.Launch([=] { return result; }, Name(executable));
  }
  int DestroyGraph(uintptr_t graph, int result = kSuccess) {
    return adapter_.DestroyGraph([=] { return result; }, Name(graph));
  }
  int Create(uint64_t handle, size_t bytes, cuda_driver::MemLocation location = {cuda_driver::kLocationDevice, 0}) {
    const cuda_driver::CUmemGenericAllocationHandle out = handle;
    const cuda_driver::MemAllocationProp properties{1, 0, location};
    return adapter_.CreatePhysical(
        caller_, [] { return kSuccess; }, &out, bytes, &properties);
  }
  int Release(uint64_t handle, int result = kSuccess) {
    return adapter_.ReleasePhysical([=] { return result; }, handle);
  }
  int Map(uint64_t address, size_t bytes, uint64_t handle) {
    return adapter_.Map(
        caller_, [] { return kSuccess; }, address, bytes, handle);
  }
  int Unmap(uint64_t address, size_t bytes, int result = kSuccess) {
    return adapter_.Unmap([=] { return result; }, address, bytes, [](uint64_t, size_t) {});
  }
  // Memory of another process.
  void Open(uint64_t address) {
    const cuda_driver::CUdeviceptr out = address;
    adapter_.OpenShared(
        caller_, [] { return kSuccess; }, &out);
  }
  void CloseShared(uint64_t address) {
    adapter_.CloseShared([] { return kSuccess; }, address);
  }
  static const void* Name(uintptr_t number) { return reinterpret_cast<const void*>(number); }
  static void* Handle(uintptr_t number) { return reinterpret_cast<void*>(number); }

  Profiler profiler_;
  Answers answers_{profiler_};
  CudaCalls adapter_{profiler_, answers_};
  const Caller caller_ = Caller::OfThisFunction();
  bool any_type_ = false;
};

TEST_F(CudaDriverAdapterTest, FailedCallReturnsItsResult) {
  EXPECT_EQ(adapter_.Allocate(
                caller_, [] { return kFails; }, []() -> DriverBuffer { throw "not asked"; }),
            kFails);
  ASSERT_EQ(Alloc(0x1000, 100), kSuccess);
  EXPECT_EQ(Free(0x1000, kFails), kFails);
  EXPECT_EQ(InUse(), 0) << "the record ends before the call";
  EXPECT_EQ(RefusedFrees(), 1);
  EXPECT_EQ(Free(0x1000, kFails), kFails);
  EXPECT_EQ(RefusedFrees(), 1) << "it has no record any more";
  EXPECT_EQ(ForeignFrees(), 1);
}

TEST_F(CudaDriverAdapterTest, FailedCallWithNullStructIsPassedOn) {
  const auto fails = [] { return kFails; };
  EXPECT_EQ(adapter_.CreatePhysical(caller_, fails, nullptr, 100, nullptr), kFails);
  EXPECT_EQ(adapter_.CreatePool(fails, nullptr, nullptr), kFails);
  EXPECT_EQ(adapter_.AddAllocNode(caller_, fails, nullptr, nullptr), kFails);
  EXPECT_EQ(adapter_.AddNode(caller_, fails, nullptr, nullptr), kFails);
  EXPECT_EQ(adapter_.CreateContext(fails, nullptr), kFails);
  EXPECT_EQ(Live(), 0);
}

TEST_F(CudaDriverAdapterTest, NullAndUnknownFreesAreForwarded) {
  EXPECT_EQ(Free(0), kSuccess);
  EXPECT_EQ(ForeignFrees(), 0) << "freeing null is how programs initialise CUDA";
  EXPECT_EQ(Free(0x5000), kSuccess);
  EXPECT_EQ(ForeignFrees(), 1);
}

// --- Physical memory. ---

TEST_F(CudaDriverAdapterTest, PhysicalMemoryEndsWithHandlesAndMappings) {
  ASSERT_EQ(Create(7, 2 * kMiB), kSuccess);
  EXPECT_EQ(InUse(), 2 * kMiB);
  Map(0x100000, 2 * kMiB, 7);
  Release(7);
  EXPECT_EQ(InUse(), 2 * kMiB) << "still mapped";
  Unmap(0x100000, 2 * kMiB);
  EXPECT_EQ(InUse(), 0);

  ASSERT_EQ(Create(7, 2 * kMiB), kSuccess);
  Map(0x100000, 2 * kMiB, 7);
  Unmap(0x100000, 2 * kMiB);
  EXPECT_EQ(InUse(), 2 * kMiB) << "still has a handle";
  Release(7);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, GgmlPoolEndsAtZero) {
  // Create, map, release; the driver reuses the handle's value while the memory is mapped. At the end
  // one unmapping over all mappings.
  const uint64_t pool = 0x10000000;
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(Create(1, 2 * kMiB), kSuccess);
    Map(pool + i * 2 * kMiB, 2 * kMiB, 1);
    Release(1);
    EXPECT_EQ(InUse(), (i + 1) * 2 * kMiB);
  }
  EXPECT_EQ(Live(), 16);
  Unmap(pool, 32 * kMiB);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, UnmapEndsOnlyMappingsInside) {
  Create(1, kMiB);
  Create(2, kMiB);
  Create(3, kMiB);
  Map(1 * kMiB, kMiB, 1);
  Map(2 * kMiB, kMiB, 2);
  Map(3 * kMiB, kMiB, 3);
  Release(1);
  Release(2);
  Release(3);
  Unmap(2 * kMiB, kMiB);
  EXPECT_EQ(InUse(), 2 * kMiB);
  Unmap(0, 16 * kMiB);
  EXPECT_EQ(InUse(), 0);
}

// A block is reported in memory from before while that is measured.
TEST_F(CudaDriverAdapterTest, AdoptionDuringTheMeasurementCountsOnce) {
  const DeviceId device = profiler_.Device("GPU:0");
  answers_.pointer = {0, MemoryKind::kDevice};
  bool is_adopted = false;
  profiler_.SetDeviceProbe(device, [&] {
    if (!std::exchange(is_adopted, true)) {
      std::thread([&] { EXPECT_TRUE(adapter_.AdoptFromBefore(0x10000000, 2 * kMiB)); }).join();
    }
    DeviceProbe probe;
    probe.driver_bytes_in_use = 10 * kMiB;
    probe.driver_scope = DriverScope::kProcess;
    probe.baseline = 0;
    return probe;
  });
  adapter_.from_before().Expect(caller_, /*is_measured=*/true);
  adapter_.from_before().Measure(device, 5);
  EXPECT_TRUE(is_adopted);
  EXPECT_EQ(InUse(), 10 * kMiB);
}

TEST_F(CudaDriverAdapterTest, RefusedReleaseOrUnmapIsCounted) {
  Create(1, kMiB);
  Map(0x100000, kMiB, 1);
  EXPECT_EQ(Release(1, kFails), kFails);
  EXPECT_EQ(InUse(), kMiB) << "it is still mapped";
  EXPECT_EQ(RefusedFrees(), 0);
  EXPECT_EQ(Unmap(0x100000, kMiB, kFails), kFails);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(RefusedFrees(), 1);
  Unmap(0x100000, kMiB);
  EXPECT_EQ(RefusedFrees(), 1);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, EveryReferenceCounts) {
  Create(1, kMiB);
  Map(0x100000, kMiB, 1);
  Release(1);
  const cuda_driver::CUmemGenericAllocationHandle again = 9;
  adapter_.RetainPhysical([] { return kSuccess; }, &again, Name(0x100000 + 5));
  Unmap(0x100000, kMiB);
  EXPECT_EQ(InUse(), kMiB) << "the retained handle holds it";
  Release(9);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(Live(), 0);
}

TEST_F(CudaDriverAdapterTest, PhysicalMemoryCountsAtItsLocation) {
  Create(1, kMiB, {cuda_driver::kLocationDevice, 1});
  Create(2, kMiB, {cuda_driver::kLocationHost, 0});
  EXPECT_EQ(InUse("GPU:1"), kMiB);
  EXPECT_EQ(InUse("GPU:0"), 0);
  EXPECT_EQ(InUse("GPU:0", MemorySpace::kPinnedHost), kMiB);
}

TEST_F(CudaDriverAdapterTest, ImportedMemoryCountsWhenMapped) {
  const cuda_driver::CUmemGenericAllocationHandle handle = 4;
  adapter_.ImportPhysical([] { return kSuccess; }, &handle);
  EXPECT_EQ(Live(), 0);
  Map(0x100000, 3 * kMiB, 4);
  EXPECT_EQ(InUse(), 3 * kMiB);
  Map(0x800000, 3 * kMiB, 4);
  EXPECT_EQ(InUse(), 3 * kMiB) << "the same memory";
  Release(4);
  Unmap(0, 64 * kMiB);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, MulticastObjectHasNoMemory) {
  const cuda_driver::CUmemGenericAllocationHandle handle = 4;
  adapter_.CreateMulticast(
      caller_, [] { return kSuccess; }, &handle);
  EXPECT_EQ(InUse(), 0);
  Release(4);
  EXPECT_EQ(ForeignFrees(), 0);
  Release(4);
  EXPECT_EQ(ForeignFrees(), 1);
}

// Random creations, mappings, releases and unmappings, compared with a naive model.
TEST_F(CudaDriverAdapterTest, PhysicalMemoryMatchesModel) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  struct Memory {
    int64_t bytes;
    int references = 1;
    int mappings = 0;
  };
  std::map<uint64_t, std::shared_ptr<Memory>> handles;
  std::map<uint64_t, std::shared_ptr<Memory>> mappings;
  std::vector<std::shared_ptr<Memory>> all;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t handle = 1 + random() % 8;
    const uint64_t address = (1 + random() % 16) * kMiB;
    switch (random() % 4) {
      case 0:
        if (handles.count(handle) != 0) break;
        all.push_back(std::make_shared<Memory>(Memory{static_cast<int64_t>(1 + random() % 1000)}));
        handles[handle] = all.back();
        Create(handle, static_cast<size_t>(all.back()->bytes));
        break;
      case 1:
        if (handles.count(handle) == 0 || mappings.count(address) != 0) break;
        ++handles[handle]->mappings;
        mappings[address] = handles[handle];
        Map(address, kMiB, handle);
        break;
      case 2:
        if (handles.count(handle) == 0) break;
        --handles[handle]->references;
        handles.erase(handle);
        Release(handle, random() % 8 == 0 ? kFails : kSuccess);
        break;
      default: {
        const uint64_t count = 1 + random() % 4;
        Unmap(address, count * kMiB, random() % 8 == 0 ? kFails : kSuccess);
        for (uint64_t j = 0; j < count; ++j) {
          const auto found = mappings.find(address + j * kMiB);
          if (found == mappings.end()) continue;
          --found->second->mappings;
          mappings.erase(found);
        }
      }
    }
    int64_t expected = 0;
    for (const auto& memory : all) {
      if (memory->references > 0 || memory->mappings > 0) expected += memory->bytes;
    }
    ASSERT_EQ(InUse(), expected) << "after step " << i;
  }
}

// --- Stream-ordered memory and graphs. ---

TEST_F(CudaDriverAdapterTest, StreamOrderedMemoryHasDriversKindAndDevice) {
  answers_.pointer = {1, MemoryKind::kManaged};
  AllocAsync(0x1000, 100, true);
  EXPECT_TRUE(answers_.asked_per_thread);
  EXPECT_EQ(InUse("GPU:1", MemorySpace::kManaged), 100);
  answers_.pointer = {-1, MemoryKind::kDevice};
  AllocAsync(0x2000, 50);
  EXPECT_EQ(InUse("GPU:0"), 50) << "the current device, where the driver does not say";
  EXPECT_EQ(Free(0x2000), kSuccess) << "by either call";
  EXPECT_EQ(InUse("GPU:0"), 0);
}

TEST_F(CudaDriverAdapterTest, CapturedMemoryCountsFromLaunchToFree) {
  answers_.capture = {true, Name(0x90)};
  AllocAsync(0x1000, 100);
  AllocAsync(0x2000, 200);
  FreeAsync(0x2000);
  answers_.capture = {};
  EXPECT_EQ(InUse(), 0) << "the graph has not run";
  Instantiate(0x90, 0x91);
  EXPECT_EQ(Launch(0x91, kFails), kFails);
  EXPECT_EQ(InUse(), 0);
  Launch(0x91);
  EXPECT_EQ(InUse(), 100) << "and not what the graph frees itself";
  EXPECT_EQ(profiler_.FindBuffer(Name(0x1000))->attributes.kind, MemoryKind::kGraph);
  EXPECT_EQ(GraphBytes(0), 100);
  Launch(0x91);  // possible for a graph that frees its remaining memory at each launch
  EXPECT_EQ(InUse(), 100);

  FreeAsync(0x1000);
  EXPECT_EQ(InUse(), 0);
  Launch(0x91);
  EXPECT_EQ(InUse(), 100) << "once more";
  DestroyGraph(0x90);
  EXPECT_EQ(DestroyGraph(0x91, kFails), kFails);
  EXPECT_EQ(InUse(), 100) << "destroying a graph frees nothing";
  Free(0x1000);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(GraphBytes(0), 0);
  // Another graph has its handle now.
  Launch(0x91);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, LaunchRaisesPeakOnce) {
  const auto peak = [&] { return profiler_.Stats(profiler_.Device("GPU:1")).peak_bytes_in_use; };
  AddAllocNode(0x90, 0x1000, 100);
  EXPECT_EQ(peak(), 0);
  EXPECT_EQ(InUse("GPU:1"), 0);
  EXPECT_EQ(profiler_.Stats(profiler_.Device("GPU:1")).num_allocs, 0);
  Instantiate(0x90, 0x91);
  Launch(0x91);
  EXPECT_EQ(peak(), 100);
  EXPECT_EQ(InUse("GPU:1"), 100);
  Free(0x1000);
  Launch(0x91);
  EXPECT_EQ(peak(), 100);
  EXPECT_EQ(profiler_.Stats(profiler_.Device("GPU:1")).num_allocs, 2) << "each launch allocates";
}

TEST_F(CudaDriverAdapterTest, UnrecordedNodeIsNoForeignFree) {
  AddAllocNode(0x90, 0x1000, size_t{1} << 40);  // more than a record holds
  Instantiate(0x90, 0x91);
  Launch(0x91);
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 1);
  EXPECT_EQ(ForeignFrees(), 0);
  EXPECT_EQ(Live(), 0);
}

// A host function of the graph wakes the thread that frees.
TEST_F(CudaDriverAdapterTest, FreeDuringGraphLaunchLeavesNoRecord) {
  AddAllocNode(0x90, 0x1000, 100);
  AddAllocNode(0x90, 0x2000, 10);
  Instantiate(0x90, 0x91);
  const int baselines = answers_.baselines;
  adapter_.Launch(
      [&] {
        std::thread([&] { Free(0x1000); }).join();
        return kSuccess;
      },
      Name(0x91));
  EXPECT_EQ(InUse("GPU:1"), 10);
  EXPECT_EQ(ForeignFrees(), 0);
  EXPECT_GT(answers_.baselines, baselines);
  EXPECT_EQ(Launch(0x91, kFails), kFails);
  EXPECT_EQ(InUse("GPU:1"), 10) << "a launch that failed takes back what it recorded, and nothing else";
  EXPECT_EQ(profiler_.Stats(profiler_.Device("GPU:1")).num_live, 1);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, ReusedGraphHandleStartsEmpty) {
  // Graphs and executable graphs whose destruction was not seen.
  for (const uintptr_t graph : {0x90, 0xa0, 0xb0}) {
    AddAllocNode(graph, graph << 8, 100);
    Instantiate(graph, graph + 1);
  }
  void* const created = Handle(0x90);
  EXPECT_EQ(adapter_.CreateGraph([] { return kFails; }, &created), kFails);
  Instantiate(0x90, 0x91);
  Launch(0x91);
  EXPECT_EQ(InUse("GPU:1"), 100) << "a call that fails gives out no handle";
  Free(0x9000);
  adapter_.CreateGraph([] { return kSuccess; }, &created);
  Instantiate(0x90, 0xc1);
  Launch(0xc1);
  EXPECT_EQ(InUse("GPU:1"), 0) << "a new graph";

  answers_.capture = {true, Name(0xa0)};
  adapter_.BeginCapture([] { return kSuccess; }, {nullptr, true});
  EXPECT_TRUE(answers_.asked_per_thread);
  answers_.capture = {};
  Instantiate(0xa0, 0xc2);
  Launch(0xc2);
  EXPECT_EQ(InUse("GPU:1"), 0) << "a new capture";

  Instantiate(0x80, 0xb1);  // a graph without memory
  Launch(0xb1);
  EXPECT_EQ(InUse("GPU:1"), 0) << "a new executable";
}

TEST_F(CudaDriverAdapterTest, LaunchFreesMemoryOfOtherGraphs) {
  AddAllocNode(0x90, 0x1000, 100);
  Instantiate(0x90, 0x91);
  AddFreeNode(0x80, 0x1000);
  Instantiate(0x80, 0x81);
  Launch(0x91);
  EXPECT_EQ(InUse("GPU:1"), 100);
  EXPECT_EQ(Launch(0x81, kFails), kFails);
  EXPECT_EQ(InUse("GPU:1"), 0);
  EXPECT_EQ(RefusedFrees(), 1);
  // Other memory at an address that a graph has freed.
  Alloc(0x1000, 5);
  Launch(0x81);
  EXPECT_EQ(InUse(), 5);
  EXPECT_EQ(ForeignFrees(), 0);
}

// A query for a device's id can set the device's probe, which waits until no probe of the device runs.
TEST_F(CudaDriverAdapterTest, ProbeReadsGraphBytesWithoutQuery) {
  AddAllocNode(0x90, 0x1000, 100);
  Instantiate(0x90, 0x91);
  Launch(0x91);
  const DeviceId device = profiler_.Device("GPU:1");
  profiler_.SetDeviceProbe(device, [&] {
    DeviceProbe probe;
    probe.driver_cache_bytes = 250 - adapter_.GraphBytes(device);
    return probe;
  });
  const int asked = answers_.devices_asked;
  EXPECT_EQ(profiler_.Stats(device).driver_cache_bytes, 150);
  EXPECT_EQ(answers_.devices_asked, asked);
}

// Eight threads create, launch, free and destroy graphs, each with its own graphs and addresses. One more thread reads
// the bytes in use.
TEST_F(CudaDriverAdapterTest, GraphMemoryMatchesModelInThreads) {
  std::atomic<int64_t> held{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  answers_.device = 1;
  for (uint64_t t = 1; t <= 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const uintptr_t graph = t * 0x1000;
      const uintptr_t executable = graph + 1;
      std::map<uint64_t, size_t> in_graph;
      std::map<uint64_t, size_t> in_executable;
      std::map<uint64_t, size_t> live;
      uint64_t next = t << 32;
      for (int i = 0; i < 3000; ++i) {
        switch (random() % 5) {
          case 0: {
            cuda_driver::MemAllocNodeParams params = {};
            params.pool.location = {cuda_driver::kLocationDevice, 1};
            params.bytes = 1 + random() % 1000;
            params.address = next += 4096;
            adapter_.AddAllocNode(
                caller_, [] { return kSuccess; }, Name(graph), &params);
            in_graph[params.address] = params.bytes;
            break;
          }
          case 1:
            DestroyGraph(executable);
            Instantiate(graph, executable);
            in_executable = in_graph;
            break;
          case 2:
            Launch(executable);
            live.insert(in_executable.begin(), in_executable.end());
            break;
          case 3:
            if (live.empty()) break;
            random() % 2 == 0 ? Free(live.begin()->first) : FreeAsync(live.begin()->first);
            live.erase(live.begin());
            break;
          default:
            if (random() % 16 != 0) break;
            DestroyGraph(graph);
            DestroyGraph(executable);
            in_graph.clear();
            in_executable.clear();
        }
      }
      for (const auto& [address, bytes] : live) held += static_cast<int64_t>(bytes);
    });
  }
  std::thread asks([&] {
    while (!done) {
      EXPECT_GE(GraphBytes(1), 0);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  asks.join();
  EXPECT_GT(held, 0);
  EXPECT_EQ(InUse("GPU:1"), held);
  EXPECT_EQ(GraphBytes(1), held);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, MovedGraphAllocatesAtParentsLaunch) {
  AddAllocNode(0x90, 0x1000, 100);
  Move(0x90, 0xa0);
  cuda_driver::GraphNodeParams params = {};  // a kernel
  adapter_.AddNode(
      caller_, [] { return kSuccess; }, Name(0xa0), &params);
  Instantiate(0xa0, 0xa1);
  AddAllocNode(0xa0, 0x2000, 1000);  // not in what has been instantiated
  Launch(0xa1);
  EXPECT_EQ(InUse("GPU:1"), 100);
}

TEST_F(CudaDriverAdapterTest, MovedGraphFreesParentsMemory) {
  AddAllocNode(0xa0, 0x1000, 100);
  AddAllocNode(0xa0, 0x2000, 10);
  AddFreeNode(0x90, 0x1000);
  AddFreeNode(0x90, 0x3000);
  Move(0x90, 0xa0);
  Instantiate(0xa0, 0xa1);
  AddAllocNode(0xb0, 0x3000, 1000);
  Instantiate(0xb0, 0xb1);
  Launch(0xb1);
  EXPECT_EQ(InUse("GPU:1"), 1000);
  Launch(0xa1);
  EXPECT_EQ(InUse("GPU:1"), 10) << "the memory of a third graph ends";
}

// --- Contexts. ---

TEST_F(CudaDriverAdapterTest, DestroyedContextEndsItsMemory) {
  Alloc(0x1000, 1);  // the primary context's
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  Alloc(0x2000, 10);
  Alloc(0x3000, 100);
  AllocAsync(0x4000, 1000);
  Create(1, 10000);
  Free(0x3000);
  answers_.context = nullptr;
  Alloc(0x3000, 100000);  // the same address, in the primary context

  EXPECT_EQ(InUse(), 111011);
  EXPECT_EQ(adapter_.DestroyContext([] { return kFails; }, context), kFails);
  EXPECT_EQ(RefusedFrees(), 1);
  EXPECT_EQ(InUse(), 111001) << "stream-ordered and physical memory is no context's";
  adapter_.DestroyContext([] { return kSuccess; }, Name(0x71));
  EXPECT_EQ(InUse(), 111001) << "of an unknown context nothing is known";
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, SharedMemoryEndsWithItsContext) {
  Open(0x1000);  // in the primary context
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  Open(0x2000);
  Open(0x2000);
  answers_.context = nullptr;
  EXPECT_EQ(InUse(), 2 * 4096);
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 4096);
  adapter_.DestroyContext([] { return kSuccess; }, context);
  EXPECT_EQ(InUse(), 0);
  Open(0x2000);  // other memory, at the same address
  EXPECT_EQ(InUse(), 4096);
  CloseShared(0x2000);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, ArrayDestroyedWhileOffLeavesItsContext) {
  const auto make_array = [this] {
    adapter_.Allocate(
        caller_, [] { return kSuccess; },
        [&] {
          return DriverBuffer{ArrayId(Name(0x40)), 100, MemoryKind::kArray};
        });
  };
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  make_array();
  profiler_.SetEnabled(false);
  adapter_.Free(ArrayId(Name(0x40)), [] { return kSuccess; });
  profiler_.SetEnabled(true);
  answers_.context = nullptr;
  make_array();  // with the same handle, in the primary context
  adapter_.DestroyContext([] { return kSuccess; }, context);
  EXPECT_EQ(InUse(), 100);
}

TEST_F(CudaDriverAdapterTest, NothingIsKnownAfterAnIntervalWithoutCalls) {
  const auto pools = [this] {
    int count = 0;
    adapter_.ForEachPool(0, [&](const void*) { ++count; });
    return count;
  };
  const cuda_driver::MemPoolProps on_gpu0{1, 0, {cuda_driver::kLocationDevice, 0}, nullptr, 0, {}};
  void* pool = Handle(0x50);
  void* context = Handle(0x70);
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu0);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  Open(0x1000);
  Create(7, 100);
  AddAllocNode(0x80, 0x3000, 1000);
  Instantiate(0x80, 0x81);
  EXPECT_EQ(pools(), 1);
  profiler_.SetEnabled(false);
  adapter_.Follow(false);
  EXPECT_EQ(pools(), 0) << "it may be destroyed at any time";
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu0);
  EXPECT_EQ(pools(), 0) << "this call began before";
  profiler_.SetEnabled(true);
  profiler_.DropDevice(profiler_.Device("GPU:0"));
  adapter_.Follow(true);
  Open(0x1000);
  EXPECT_EQ(InUse(), 4096);
  Launch(0x81);
  EXPECT_EQ(GraphBytes(1), 0);
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu0);
  EXPECT_EQ(pools(), 1);
  Map(0x100000, 100, 7);
  EXPECT_EQ(InUse(), 4096) << "the memory of this handle is not known";
}

TEST_F(CudaDriverAdapterTest, ResetKeepsMemoryOfOtherContexts) {
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  Alloc(0x1000, 1);
  answers_.context = context;
  Alloc(0x2000, 10);
  answers_.context = nullptr;
  AllocAsync(0x4000, 100);
  Create(1, 1000);
  Map(0x100000, 1000, 1);
  Release(1);
  answers_.device = 1;
  Alloc(0x5000, 10000);

  answers_.primary_active = true;
  adapter_.ReleasePrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 1111) << "somebody still holds the context";
  answers_.primary_active = false;
  EXPECT_EQ(adapter_.ResetPrimaryContext([] { return kFails; }, 0), kFails);
  EXPECT_EQ(InUse(), 1111);
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 1110);
  EXPECT_EQ(InUse("GPU:1"), 10000);
  Unmap(0x100000, 1000);
  Free(0x2000);
  Free(0x4000);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, ResetKeepsStreamOrderedSegmentsButNotTheirBlocks) {
  AllocAsync(0x4000, 4096);
  const Pool pool = {profiler_.Device("GPU:0"), profiler_.Allocator("pool")};
  ASSERT_TRUE(profiler_.RecordSegment(pool, BufferId(uint64_t{0x4000}), 4096));
  ASSERT_TRUE(profiler_.RecordBlock(pool, BufferId(uint64_t{0x4000}), 100));
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 4096);
  EXPECT_EQ(profiler_.Stats(pool.device).idle_bytes, 4096);
  Free(0x4000);
  EXPECT_EQ(InUse(), 0);
}

TEST_F(CudaDriverAdapterTest, AllocationInEndedContextHasNoRecord) {
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  adapter_.Allocate(
      caller_,
      [&] {
        adapter_.DestroyContext([] { return kSuccess; }, context);
        return kSuccess;
      },
      [] {
        return DriverBuffer{BufferId(uint64_t{0x2000}), 10, MemoryKind::kDevice};
      });
  EXPECT_EQ(InUse(), 0);
}

TEST_F(CudaDriverAdapterTest, ResetWhileOffEndsOpeningsOfSharedMemory) {
  Open(0x3000);
  profiler_.SetEnabled(false);
  Open(0x4000);
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 1);
  profiler_.SetEnabled(true);
  const int64_t opened = InUse();
  ASSERT_NE(opened, 0);
  Open(0x3000);
  Open(0x4000);
  EXPECT_EQ(InUse(), opened) << "another device's reset: both are still open";
  profiler_.SetEnabled(false);
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  profiler_.SetEnabled(true);
  EXPECT_EQ(InUse(), 0);
  Open(0x3000);
  EXPECT_EQ(InUse(), opened);
  Open(0x4000);
  EXPECT_EQ(InUse(), 2 * opened);
}

TEST_F(CudaDriverAdapterTest, MemoryKeptByResetCanBeFreed) {
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  Alloc(0x2000, 10);
  answers_.context = nullptr;
  Create(1, 100);
  answers_.meanwhile = [&] {
    Free(0x2000);
    Release(1);
  };
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, ResetEndsContextInUseByThread) {
  Alloc(0x1000, 1);
  answers_.primary_active = true;
  adapter_.ResetPrimaryContext([] { return kSuccess; }, 0);
  EXPECT_EQ(InUse(), 0);
}

// --- Pools, shared memory, code. ---

TEST_F(CudaDriverAdapterTest, QueriedPoolIsNotDestroyed) {
  const cuda_driver::MemPoolProps on_gpu1{1, 0, {cuda_driver::kLocationDevice, 1}, nullptr, 0, {}};
  for (const bool by_reset : {false, true}) {
    void* pool = Handle(0x50);
    void* other = Handle(0x60);
    adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu1);
    std::atomic<bool> asked{true};
    std::atomic<bool> destroying{false};
    std::thread destroyer;
    const auto destroy = [&] {
      EXPECT_FALSE(asked);
      return kSuccess;
    };
    adapter_.ForEachPool(1, [&](const void* visited) {
      if (visited != pool) return;
      destroyer = std::thread([&] {
        destroying = true;
        if (by_reset) {
          adapter_.EndDevice(destroy, 1, [](MemoryKind) { return false; });
        } else {
          adapter_.DestroyPool(destroy, pool);
        }
      });
      while (!destroying) std::this_thread::yield();
      // No lock is held here. Otherwise this call would never return.
      adapter_.CreatePool([] { return kSuccess; }, &other, &on_gpu1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      asked = false;
    });
    destroyer.join();
    int count = 0;
    adapter_.ForEachPool(1, [&](const void*) { ++count; });
    EXPECT_EQ(count, by_reset ? 0 : 1);
  }
}

// Between the removal from the table and the driver's call, the thread must not end.
TEST_F(CudaDriverAdapterTest, WaitForAQueriedPoolIsNoCancellationPoint) {
  void* pool = Handle(0x50);
  const cuda_driver::MemPoolProps on_gpu1{1, 0, {cuda_driver::kLocationDevice, 1}, nullptr, 0, {}};
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu1);
  std::atomic<bool> is_destroyed{false};
  std::atomic<bool> is_querying{false};
  std::atomic<bool> is_cancelled{false};
  std::thread reader([&] {
    adapter_.ForEachPool(1, [&](const void*) {
      is_querying = true;
      while (!is_cancelled) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
  });
  while (!is_querying) std::this_thread::yield();
  std::thread destroyer([&] {
    pthread_cancel(pthread_self());
    is_cancelled = true;
    adapter_.DestroyPool(
        [&] {
          is_destroyed = true;
          return kSuccess;
        },
        pool);
  });
  destroyer.join();
  reader.join();
  EXPECT_TRUE(is_destroyed);
}

// Where the memory of a pool is, for each location that it can have.
TEST_F(CudaDriverAdapterTest, PoolIsWhereItsMemoryIs) {
  constexpr int kPinned = 1;
  constexpr int kManaged = cuda_driver::kAllocationManaged;
  constexpr int kInvisible = 5;
  const struct {
    int type;
    cuda_driver::MemLocation location;
    int device;
    MemorySpace space;
  } cases[] = {{kPinned, {cuda_driver::kLocationDevice, 300}, 300, MemorySpace::kDevice},
               {kPinned, {cuda_driver::kLocationDeviceLocalityDomain, 0x0301}, 1, MemorySpace::kDevice},
               {kPinned, {cuda_driver::kLocationHost, 7}, -1, MemorySpace::kPinnedHost},
               {kPinned, {cuda_driver::kLocationHost + 1, 1}, -1, MemorySpace::kPinnedHost},
               {kPinned, {cuda_driver::kLocationHostNumaCurrent, 1}, -1, MemorySpace::kPinnedHost},
               {kPinned, {kInvisible, -2}, -1, MemorySpace::kDevice},
               {kManaged, {0, 0}, -1, MemorySpace::kManaged},
               {kManaged, {cuda_driver::kLocationDevice, 1}, -1, MemorySpace::kManaged},
               {kManaged, {cuda_driver::kLocationHost, 0}, -1, MemorySpace::kManaged}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << "type " << c.type << ", location " << c.location.type);
    void* pool = Handle(0x50);
    const cuda_driver::MemPoolProps properties{c.type, 0, c.location, nullptr, 64, {}};
    adapter_.CreatePool([] { return kSuccess; }, &pool, &properties);
    int visits = 0;
    adapter_.VisitPool(pool, [&](const DriverPool& created) {
      ++visits;
      EXPECT_EQ(created.device, c.device);
      EXPECT_EQ(created.space, c.space);
      EXPECT_EQ(created.limit, 64u);
    });
    EXPECT_EQ(visits, 1);
  }
}

TEST_F(CudaDriverAdapterTest, PoolsAreListedUntilDestroyed) {
  void* pool = Handle(0x50);
  const cuda_driver::MemPoolProps on_gpu1{1, 0, {cuda_driver::kLocationDevice, 1}, nullptr, 0, {}};
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu1);
  const auto pools = [&](int device) {
    int count = 0;
    adapter_.ForEachPool(device, [&](const void*) { ++count; });
    return count;
  };
  EXPECT_EQ(pools(1), 1);
  EXPECT_EQ(pools(0), 0);
  adapter_.DestroyPool([] { return kSuccess; }, pool);
  EXPECT_EQ(pools(1), 0);
}

TEST_F(CudaDriverAdapterTest, SharedMemoryCountsOnce) {
  Open(0x1000);
  Open(0x1000);
  EXPECT_EQ(InUse(), 4096);
  CloseShared(0x1000);
  EXPECT_EQ(InUse(), 4096);
  CloseShared(0x1000);
  EXPECT_EQ(InUse(), 0);
}

TEST_F(CudaDriverAdapterTest, SharedMemoryClosedWhileOffCountsWhenOpenedAgain) {
  Open(0x1000);
  profiler_.SetEnabled(false);
  CloseShared(0x1000);
  profiler_.DropDevice(profiler_.Device("GPU:0"));
  profiler_.SetEnabled(true);
  Open(0x1000);
  EXPECT_EQ(InUse(), 4096);
  CloseShared(0x1000);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

TEST_F(CudaDriverAdapterTest, SharedMemoryOpenedWhileOffDoesNotCount) {
  profiler_.SetEnabled(false);
  Open(0x1000);
  EXPECT_EQ(answers_.devices_asked, 0);
  profiler_.SetEnabled(true);
  Open(0x1000);
  EXPECT_EQ(InUse(), 0) << "the memory was open";
  CloseShared(0x1000);
  CloseShared(0x1000);
  Open(0x1000);
  EXPECT_EQ(InUse(), 4096);
}

TEST_F(CudaDriverAdapterTest, ContextCreatedWhileOffEndsItsMemory) {
  profiler_.SetEnabled(false);
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  profiler_.SetEnabled(true);
  answers_.context = context;
  Alloc(0x2000, 10);
  EXPECT_EQ(InUse(), 10);
  adapter_.DestroyContext([] { return kSuccess; }, context);
  EXPECT_EQ(InUse(), 0);
}

TEST_F(CudaDriverAdapterTest, BufferFreedWhileOffLeavesItsContext) {
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  answers_.context = context;
  Alloc(0x2000, 10);
  profiler_.SetEnabled(false);
  Free(0x2000);
  profiler_.DropDevice(profiler_.Device("GPU:0"));
  profiler_.SetEnabled(true);
  answers_.context = nullptr;
  Alloc(0x2000, 100);  // the same address, in the primary context
  adapter_.DestroyContext([] { return kSuccess; }, context);
  EXPECT_EQ(InUse(), 100);
}

TEST_F(CudaDriverAdapterTest, ContextDestroyedWhileOffHasNoMemory) {
  void* context = Handle(0x70);
  adapter_.CreateContext([] { return kSuccess; }, &context);
  profiler_.SetEnabled(false);
  adapter_.DestroyContext([] { return kSuccess; }, context);
  profiler_.SetEnabled(true);
  answers_.context = context;  // a primary context at the same address
  Alloc(0x2000, 10);
  adapter_.DestroyContext([] { return kFails; }, context);
  adapter_.DestroyContext([] { return kSuccess; }, context);
  EXPECT_EQ(InUse(), 10);
}

TEST_F(CudaDriverAdapterTest, PoolCreatedWhileOffIsListed) {
  profiler_.SetEnabled(false);
  void* pool = Handle(0x50);
  const cuda_driver::MemPoolProps on_gpu1{1, 0, {cuda_driver::kLocationDevice, 1}, nullptr, 0, {}};
  adapter_.CreatePool([] { return kSuccess; }, &pool, &on_gpu1);
  profiler_.SetEnabled(true);
  int count = 0;
  adapter_.ForEachPool(1, [&](const void*) { ++count; });
  EXPECT_EQ(count, 1);
}

TEST_F(CudaDriverAdapterTest, CodeSizeIsDecreaseOfFreeMemory) {
  const BufferId module = ModuleId(Name(0x60));
  const auto name = [&] { return module; };
  answers_.free_bytes = 1000;
  adapter_.Load(
      caller_,
      [&] {
        answers_.free_bytes = 700;
        return kSuccess;
      },
      name);
  EXPECT_EQ(InUse(), 300);
  EXPECT_EQ(profiler_.FindBuffer(module)->attributes.kind, MemoryKind::kExecutable);
  EXPECT_EQ(adapter_.Unload(module, [] { return kSuccess; }), kSuccess);
  EXPECT_EQ(InUse(), 0);

  adapter_.Load(
      caller_,
      [&] {
        std::thread([&] { const TrackedCall other(caller_); }).join();
        answers_.free_bytes = 500;
        return kSuccess;
      },
      name);
  EXPECT_EQ(InUse(), 0) << "another call ran at the same time";
  adapter_.Unload(module, [] { return kSuccess; });
  EXPECT_EQ(ForeignFrees(), 0);
}

// --- Nested calls, threads, the off switch. ---

TEST_F(CudaDriverAdapterTest, OnlyTheOutermostCallIsTracked) {
  const TrackedCall outer(caller_);
  EXPECT_TRUE(outer.outermost());
  {
    const TrackedCall inner(caller_);
    EXPECT_FALSE(inner.outermost());
    std::thread([&] {
      const TrackedCall elsewhere(caller_);
      EXPECT_TRUE(elsewhere.outermost()) << "each thread has its own";
    }).join();
  }
}

TEST_F(CudaDriverAdapterTest, ForwardsEverythingWhileOff) {
  profiler_.SetEnabled(false);
  Alloc(0x1000, 1);
  AllocAsync(0x2000, 1);
  Create(1, 1);
  Map(0x100000, 1, 1);
  Unmap(0x100000, 1);
  Release(1);
  Free(0x1000);
  EXPECT_EQ(Live(), 0);
  EXPECT_EQ(ForeignFrees(), 0);
}

// A driver that reuses the address that was freed last. Thread-safe.
TEST_F(CudaDriverAdapterTest, ReusedAddressesInThreadsKeepRecords) {
  std::mutex mutex;
  std::vector<uint64_t> free_addresses;
  for (uint64_t i = 64; i > 0; --i) free_addresses.push_back(i * 4096);
  const auto take = [&] {
    std::lock_guard<std::mutex> lock(mutex);
    const uint64_t address = free_addresses.back();
    free_addresses.pop_back();
    return address;
  };
  const auto give = [&](uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    free_addresses.push_back(address);
  };
  std::vector<std::thread> threads;
  std::atomic<int64_t> held{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<uint64_t> mine;
      for (int i = 0; i < 20000; ++i) {
        if (mine.size() < 7 && (mine.empty() || random() % 2 == 0)) {
          cuda_driver::CUdeviceptr address = 0;
          const auto real = [&] {
            address = take();
            return kSuccess;
          };
          if (random() % 2 == 0) {
            adapter_.Allocate(caller_, real, [&] { return DriverBuffer{BufferId(address), 16, MemoryKind::kDevice}; });
          } else {
            adapter_.AllocateAsync(caller_, real, &address, 16, {});
          }
          mine.push_back(address);
        } else {
          const uint64_t address = mine.back();
          mine.pop_back();
          adapter_.Free(BufferId(address), [&] {
            give(address);
            return kSuccess;
          });
        }
      }
      held += static_cast<int64_t>(mine.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Live(), held);
  EXPECT_EQ(InUse(), held * 16);
  EXPECT_EQ(ForeignFrees(), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0);
}

}  // namespace
}  // namespace hbmprof::internal
