// The logic of tracking the driver's calls: what each sort of call does to the records, in the right order around the
// real call, whose result it returns unchanged. Knows no CUDA: the real calls come in as callables, what must be asked
// of the driver through CudaDriverQuestions. Everything here is thread-safe.
// Not here: which call is of which sort (driver_calls.inc), tables (driver_memory.h), sizes (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/adapter.h"
#include "src/backends/cuda/driver_abi.h"
#include "src/backends/cuda/driver_memory.h"
#include "src/backends/cuda/driver_ranges.h"

namespace hbmprof::internal {

struct CudaDriverStream {
  void* stream = nullptr;
  bool per_thread_default = false;  // what the null stream means
};

// What the adapter asks of the driver. No answer may change any state of the driver or create a context.
class CudaDriverQuestions {
 public:
  struct Pointer {
    int device = -1;  // -1: the driver does not say
    MemoryKind kind = MemoryKind::kDevice;
  };
  struct Capture {
    bool active = false;
    const void* graph = nullptr;  // that is being captured into
  };

  virtual ~CudaDriverQuestions() = default;
  // The ordinal of the calling thread's current device, -1 if it has none.
  virtual int CurrentDevice() = 0;
  virtual const void* CurrentContext() = 0;
  virtual Pointer DescribePointer(const void* address) = 0;
  // The size of the allocation that `address` lies in; 0 if the driver does not say.
  virtual size_t AddressRangeBytes(const void* address) = 0;
  virtual Capture CaptureOf(const CudaDriverStream& stream) = 0;
  virtual bool PrimaryContextActive(int device) = 0;
  // Free bytes of the current device, -1 if there is none.
  virtual int64_t FreeBytes() = 0;
  // The profiler's id of a device; of the default device for -1.
  virtual DeviceId Device(int ordinal) = 0;
  // The label of stream-ordered memory.
  virtual AllocatorId StreamOrderedAllocator() = 0;
  // No question: an allocation on this device has been recorded.
  virtual void Recorded(DeviceId device) = 0;
};

// One tracked call on this thread. A call made within another (by the driver, or by a wrapper above it) records nothing
// of its own.
class TrackedCudaCall {
 public:
  explicit TrackedCudaCall(const Caller& caller);
  ~TrackedCudaCall();
  TrackedCudaCall(const TrackedCudaCall&) = delete;
  TrackedCudaCall& operator=(const TrackedCudaCall&) = delete;

  bool outermost() const { return outermost_; }
  // Where the stack begins: SetCallerAbove's, if a wrapper above set one, else the constructor's.
  const Caller& caller() const { return caller_; }

  // For a tracked wrapper above the driver: the stack of what the thread allocates until it is called with null begins
  // there. `caller` is kept by reference.
  static void SetCallerAbove(const Caller* caller);

  // Starts and ends of outermost calls so far, on all threads.
  static uint64_t Count() { return count_.load(std::memory_order_relaxed); }

 private:
  static std::atomic<uint64_t> count_;
  const bool outermost_;
  const Caller& caller_;
};

class CudaDriverAdapter {
 public:
  CudaDriverAdapter(Profiler& profiler, CudaDriverQuestions& questions)
      : profiler_(profiler), questions_(questions), physical_(profiler), graphs_(profiler), contexts_(profiler) {}

  static CudaBuffer Buffer(BufferId id, size_t bytes, MemoryKind kind) { return {id, bytes, kind}; }
  static CudaBuffer Buffer(cuda_driver::CUdeviceptr address, size_t bytes, MemoryKind kind) {
    return {BufferId(uint64_t{address}), bytes, kind};
  }

  // `describe` gives the CudaBuffer, which is on the current device. It is called only after a success.
  template <typename Real, typename Describe>
  int Allocate(const Caller& caller, const Real& real, const Describe& describe) {
    const CudaContexts::Owner owner = CurrentOwner();
    const int result = real();
    if (!Succeeded(result)) return result;
    const CudaBuffer buffer = describe();
    RecordOrDrop(profiler_, buffer.bytes, [&] { Record(caller, buffer, owner); });
    return result;
  }

  template <typename Real>
  int AllocateAsync(const Caller& caller, const Real& real, const cuda_driver::CUdeviceptr* address, size_t bytes,
                    const CudaDriverStream& stream) {
    return ThenRecord(real, bytes, [&] { RecordAsync(caller, *address, bytes, stream); });
  }
  // Memory of another process, freed like stream-ordered memory.
  template <typename Real>
  int Import(const Caller& caller, const Real& real, const cuda_driver::CUdeviceptr* address) {
    return ThenRecord(real, 0, [&] { RecordImported(caller, *address); });
  }

  template <typename Real>
  int Free(BufferId id, const Real& real) {
    return ThenCall(
        real, [&] { return Remove(id); }, [&](Removed removed) { PutBack(std::move(removed)); });
  }
  // On a stream that captures, the making of a node that frees.
  template <typename Real>
  int FreeAsync(const Real& real, cuda_driver::CUdeviceptr address, const CudaDriverStream& stream) {
    const CudaDriverQuestions::Capture capture =
        graphs_.used() ? questions_.CaptureOf(stream) : CudaDriverQuestions::Capture();
    return capture.graph == nullptr ? Free(BufferId(address), real) : AddFreeNode(real, capture.graph, address);
  }

  // --- Pools: hold no bytes of their own, but idle ones that the device's numbers must know of. ---

  template <typename Real>
  int CreatePool(const Real& real, void* const* pool, const cuda_driver::MemPoolProps* properties) {
    return ThenRecord(real, 0, [&] {
      if (properties->location.type == cuda_driver::kLocationDevice) pools_.Created(*pool, properties->location.id);
    });
  }
  template <typename Real>
  int DestroyPool(const Real& real, void* pool) {
    // Also while recording is off: no destroyed pool may be asked anything.
    CudaPools::Removed removed = pools_.Remove(pool);
    const int result = real();
    if (result != cuda_driver::kSuccess) pools_.PutBack(std::move(removed));
    return result;
  }
  // Calls `visit` for every pool that was created on a device and not destroyed; none is destroyed meanwhile.
  template <typename Visit>
  void ForEachPool(int device, const Visit& visit) {
    pools_.ForEach(device, visit);
  }

  // --- Physical memory and mappings. ---

  template <typename Real>
  int CreatePhysical(const Caller& caller, const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle,
                     size_t bytes, const cuda_driver::MemAllocationProp* properties) {
    return ThenRecord(real, bytes, [&] {
      const Attributes attributes = At(properties->location);
      physical_.Created(caller, *handle, bytes, attributes);
      questions_.Recorded(attributes.device);
    });
  }
  // Owns no memory; what is bound to it does.
  template <typename Real>
  int CreateMulticast(const Caller& caller, const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    return ThenRecord(real, 0, [&] { physical_.Created(caller, *handle, 0, OnCurrentDevice(MemoryKind::kAlias)); });
  }
  template <typename Real>
  int ImportPhysical(const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    return ThenRecord(real, 0, [&] { physical_.Imported(*handle); });
  }
  template <typename Real>
  int RetainPhysical(const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle, const void* address) {
    return ThenRecord(real, 0, [&] { physical_.Retained(*handle, reinterpret_cast<uintptr_t>(address)); });
  }
  template <typename Real>
  int ReleasePhysical(const Real& real, cuda_driver::CUmemGenericAllocationHandle handle) {
    return ThenCall(
        real, [&] { return physical_.Release(handle); },
        [&](CudaPhysicalMemory::Taken taken) { physical_.PutBack(std::move(taken)); });
  }
  template <typename Real>
  int Map(const Caller& caller, const Real& real, cuda_driver::CUdeviceptr address, size_t bytes,
          cuda_driver::CUmemGenericAllocationHandle handle) {
    return ThenRecord(
        real, bytes, [&] { physical_.Mapped(caller, address, bytes, handle, OnCurrentDevice(MemoryKind::kExternal)); });
  }
  template <typename Real>
  int Unmap(const Real& real, cuda_driver::CUdeviceptr address, size_t bytes) {
    return ThenCall(
        real, [&] { return physical_.Unmap(address, bytes); },
        [&](CudaPhysicalMemory::Taken taken) { physical_.PutBack(std::move(taken)); });
  }

  bool NameMappingByAddress(uint64_t address, bool (*rename)(BufferId from, BufferId to)) {
    return physical_.NameByAddress(address, rename);
  }

  // Tiles of sparse arrays. Counted at the call, whenever the stream comes to it.
  template <typename Real>
  int MapTiles(const Real& real, const cuda_driver::ArrayMapInfo* list, unsigned count) {
    return ThenRecord(real, 0, [&] { RecordTiles(list, count); });
  }
  template <typename Real>
  int DestroyArray(BufferId id, const Real& real) {
    return ThenCall(
        real,
        [&] {
          RemovedArray removed;
          physical_.UnmapArray(id, removed.tiles);
          removed.array = Remove(id);
          return removed;
        },
        [&](RemovedArray removed) {
          PutBack(std::move(removed.array));
          physical_.PutBack(std::move(removed.tiles));
        });
  }

  // --- Memory of other processes: opened again, it is the same memory. ---

  template <typename Real>
  int OpenShared(const Caller& caller, const Real& real, const cuda_driver::CUdeviceptr* address) {
    return ThenRecord(real, 0, [&] { RecordShared(caller, *address); });
  }
  template <typename Real>
  int CloseShared(const Real& real, cuda_driver::CUdeviceptr address) {
    const int result =
        shared_.Close(profiler_, resets_, reinterpret_cast<const void*>(address), cuda_driver::kSuccess, real);
    CudaDriverRanges::Changed();
    return result;
  }

  // --- Graphs: what their nodes allocate is counted from a launch on, see CudaGraphMemory. ---

  // A new graph has nothing of the one that had its handle before, whose end may not have been seen: that of a capture
  // that failed is not.
  template <typename Real>
  int CreateGraph(const Real& real, void* const* graph) {
    const int result = real();
    if (result == cuda_driver::kSuccess) graphs_.Remove(*graph);
    return result;
  }
  template <typename Real>
  int BeginCapture(const Real& real, const CudaDriverStream& stream) {
    const int result = real();
    if (result == cuda_driver::kSuccess && graphs_.used()) graphs_.Remove(questions_.CaptureOf(stream).graph);
    return result;
  }
  template <typename Real>
  int AddAllocNode(const Caller& caller, const Real& real, const void* graph,
                   const cuda_driver::MemAllocNodeParams* params) {
    const int result = real();
    if (Succeeded(result)) {
      RecordOrDrop(profiler_, params->bytes, [&] { RecordAllocNode(caller, graph, *params); });
    }
    return result;
  }
  template <typename Real>
  int AddNode(const Caller& caller, const Real& real, const void* graph, const cuda_driver::GraphNodeParams* params) {
    if (params != nullptr && params->type == cuda_driver::kGraphNodeMemAlloc) {
      return AddAllocNode(caller, real, graph, &params->alloc);
    }
    if (params != nullptr && params->type == cuda_driver::kGraphNodeMemFree) {
      return AddFreeNode(real, graph, params->freed);
    }
    return ThenRecord(real, 0, [&] {
      if (params->type == cuda_driver::kGraphNodeGraph && params->child.ownership == cuda_driver::kOwnershipMove) {
        graphs_.Moved(params->child.graph, graph);
      }
    });
  }
  template <typename Real>
  int AddFreeNode(const Real& real, const void* graph, cuda_driver::CUdeviceptr address) {
    return ThenRecord(real, 0, [&] { graphs_.MadeFree(graph, BufferId(uint64_t{address})); });
  }
  template <typename Real>
  int Instantiate(const Real& real, const void* graph, void* const* executable) {
    return ThenRecord(real, 0, [&] { graphs_.Instantiated(graph, *executable); });
  }
  template <typename Real>
  int Launch(const Real& real, const void* executable) {
    if (!graphs_.used()) return real();
    CudaGraphMemory::Launched launched;
    const int result = ThenCall(
        real,
        [&] {
          launched = graphs_.Launch(executable);
          CudaDriverRanges::Changed();
          return true;
        },
        [&](bool) {
          graphs_.UndoLaunch(launched);
          CudaDriverRanges::Changed();
        });
    if (Succeeded(result)) {
      RecordOrDrop(profiler_, 0, [&] {
        for (const DeviceId device : launched.devices) questions_.Recorded(device);
      });
    }
    return result;
  }
  // Of a graph, or of what was instantiated from one.
  template <typename Real>
  int DestroyGraph(const Real& real, const void* graph) {
    CudaGraphMemory::Removed removed = graphs_.Remove(graph);
    const int result = real();
    if (result != cuda_driver::kSuccess) graphs_.PutBack(std::move(removed));
    return result;
  }
  // Bytes of graphs in use on a device. Asks no question: it is called within the device's probe.
  int64_t GraphBytes(DeviceId device) { return graphs_.BytesInUse(device); }

  // --- Contexts. ---

  template <typename Real>
  int CreateContext(const Real& real, void* const* context) {
    return ThenRecord(real, 0, [&] { contexts_.Created(*context); });
  }
  // Everything of the context goes, but stream-ordered and physical memory.
  template <typename Real>
  int DestroyContext(const Real& real, const void* context) {
    EndedContext ended;
    const int result = ThenCall(
        real,
        [&] {
          ended = EndContext(context);
          return true;
        },
        [&](bool) { PutBackContext(std::move(ended)); });
    if (result == cuda_driver::kSuccess) contexts_.HasEnded(std::move(ended.context));
    return result;
  }
  // Everything of the context goes, whoever holds it.
  template <typename Real>
  int ResetPrimaryContext(const Real& real, int device) {
    return ThenRecord(real, 0, [&] { DropPrimaryContext(device); });
  }
  // The last release resets.
  template <typename Real>
  int ReleasePrimaryContext(const Real& real, int device) {
    return ThenRecord(real, 0, [&] {
      if (!questions_.PrimaryContextActive(device)) DropPrimaryContext(device);
    });
  }

  // --- Program code: counted as what the device's free memory shrinks by, if no other call was under way. ---

  template <typename Real, typename Name>
  int Load(const Caller& caller, const Real& real, const Name& name) {
    const CudaContexts::Owner owner = CurrentOwner();
    const Measurement before = Measure();
    const int result = real();
    if (!Succeeded(result)) return result;
    const size_t bytes = BytesSince(before);
    if (bytes == 0) return result;
    const CudaBuffer loaded = {name(), bytes, MemoryKind::kExecutable};
    RecordOrDrop(profiler_, bytes, [&] { Record(caller, loaded, owner); });
    return result;
  }
  template <typename Real>
  int Unload(BufferId id, const Real& real) {
    // What took no memory that could be measured has no record.
    return profiler_.FindBuffer(id).has_value() ? Free(id, real) : real();
  }

 private:
  // What a free took out: a created context's buffer, or another.
  struct Removed {
    CudaDriverRanges::Removed range;
    CudaContexts::Removed owned;
    BufferId id;
    FreedRecord record;
    uint64_t resets_before = 0;
  };
  struct RemovedArray {
    Removed array;
    CudaPhysicalMemory::Taken tiles;
  };
  struct EndedContext {
    CudaContexts::Ended context;
    CudaPhysicalMemory::Taken unmapped;  // from its arrays
  };
  struct Measurement {
    int64_t free_bytes = -1;
    uint64_t calls = 0;
  };

  bool Succeeded(int result) const { return result == cuda_driver::kSuccess && profiler_.enabled(); }
  template <typename Real, typename Record>
  int ThenRecord(const Real& real, size_t bytes, const Record& record) {
    return CallThenRecord(profiler_, int{cuda_driver::kSuccess}, real, bytes, record);
  }
  template <typename Real, typename Take, typename PutBack>
  int ThenCall(const Real& real, const Take& take, const PutBack& put_back) {
    return ForgetThenCall(profiler_, int{cuda_driver::kSuccess}, real, take, put_back);
  }
  Attributes OnCurrentDevice(MemoryKind kind) { return {questions_.Device(questions_.CurrentDevice()), kind, {}}; }
  Attributes At(const cuda_driver::MemLocation& location);

  // The created context that an allocation of this thread belongs to. Asked before the real call: the context may end
  // right after that.
  CudaContexts::Owner CurrentOwner() {
    return contexts_.used() && profiler_.enabled() ? contexts_.Find(questions_.CurrentContext()) : nullptr;
  }
  // Records what the driver has given out at `id`.
  bool RecordRange(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  void Record(const Caller& caller, const CudaBuffer& buffer, const CudaContexts::Owner& owner);
  void RecordAsync(const Caller& caller, uint64_t address, size_t bytes, const CudaDriverStream& stream);
  void RecordImported(const Caller& caller, uint64_t address);
  void RecordTiles(const cuda_driver::ArrayMapInfo* list, unsigned count);
  void RecordShared(const Caller& caller, uint64_t address);
  void RecordAllocNode(const Caller& caller, const void* graph, const cuda_driver::MemAllocNodeParams& params);
  Removed Remove(BufferId id);
  void PutBack(Removed removed);
  EndedContext EndContext(const void* context);
  void PutBackContext(EndedContext ended);
  void DropPrimaryContext(int device);
  Measurement Measure();
  // What the device's free memory has shrunk by; 0 if that cannot be told.
  size_t BytesSince(const Measurement& before);

  Profiler& profiler_;
  CudaDriverQuestions& questions_;
  CudaPhysicalMemory physical_;
  CudaGraphMemory graphs_;
  SharedOpenings shared_;
  CudaContexts contexts_;
  CudaPools pools_;
  CudaDeviceResets resets_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_
