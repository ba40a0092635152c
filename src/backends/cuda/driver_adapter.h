// The logic of tracking the driver's calls: what each sort of call does to the records, in the right order around the
// real call, whose result it returns unchanged. Knows no CUDA: the real calls come in as callables, what must be asked
// of the driver through CudaDriverQuestions. Everything here is thread-safe.
// Not here: which call is of which sort (driver_calls.inc), tables (driver_memory.h), sizes (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/adapter.h"
#include "src/backends/cuda/driver_abi.h"
#include "src/backends/cuda/driver_memory.h"
#include "src/base/mutex.h"

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
      : profiler_(profiler), questions_(questions), physical_(profiler), graphs_(profiler) {}

  // A buffer on the current device.
  CudaBuffer Here(BufferId id, size_t bytes, MemoryKind kind) {
    return {id, bytes, {questions_.Device(questions_.CurrentDevice()), kind, {}}};
  }
  CudaBuffer Here(cuda_driver::CUdeviceptr address, size_t bytes, MemoryKind kind) {
    return Here(BufferId(uint64_t{address}), bytes, kind);
  }
  // Memory of another process, freed like stream-ordered memory.
  CudaBuffer Imported(cuda_driver::CUdeviceptr address);

  // `describe` gives the CudaBuffer; it is called only after a success.
  template <typename Real, typename Describe>
  int Allocate(const Caller& caller, const Real& real, const Describe& describe) {
    const int result = real();
    if (Succeeded(result)) Record(caller, describe());
    return result;
  }

  template <typename Real>
  int AllocateAsync(const Caller& caller, const Real& real, const cuda_driver::CUdeviceptr* address, size_t bytes,
                    const CudaDriverStream& stream) {
    const int result = real();
    if (Succeeded(result)) RecordAsync(caller, *address, bytes, stream);
    return result;
  }

  template <typename Real>
  int Free(BufferId id, const Real& real) {
    const Removed removed = Remove(id);
    const int result = real();
    if (result != cuda_driver::kSuccess) PutBack(removed);
    return result;
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
    const int result = real();
    if (Succeeded(result) && properties->location.type == cuda_driver::kLocationDevice) {
      AddPool(*pool, properties->location.id);
    }
    return result;
  }
  template <typename Real>
  int DestroyPool(const Real& real, void* pool) {
    const int device = RemovePool(pool);
    const int result = real();
    if (result != cuda_driver::kSuccess && device >= 0) AddPool(pool, device);
    return result;
  }
  // Calls `visit` for every pool that was created on a device and not destroyed; none is destroyed meanwhile.
  template <typename Visit>
  void ForEachPool(int device, const Visit& visit) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    for (const auto& [pool, pool_device] : pools_) {
      if (pool_device == device) visit(pool);
    }
  }

  // --- Physical memory and mappings. ---

  template <typename Real>
  int CreatePhysical(const Caller& caller, const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle,
                     size_t bytes, const cuda_driver::MemAllocationProp* properties) {
    const int result = real();
    if (Succeeded(result)) {
      const Attributes attributes = At(properties->location);
      physical_.Created(caller, *handle, bytes, attributes);
      questions_.Recorded(attributes.device);
    }
    return result;
  }
  // Owns no memory; what is bound to it does.
  template <typename Real>
  int CreateMulticast(const Caller& caller, const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    const int result = real();
    if (Succeeded(result)) physical_.Created(caller, *handle, 0, OnCurrentDevice(MemoryKind::kAlias));
    return result;
  }
  template <typename Real>
  int ImportPhysical(const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    const int result = real();
    if (Succeeded(result)) physical_.Imported(*handle);
    return result;
  }
  template <typename Real>
  int RetainPhysical(const Real& real, const cuda_driver::CUmemGenericAllocationHandle* handle, const void* address) {
    const int result = real();
    if (Succeeded(result)) physical_.Retained(*handle, reinterpret_cast<uintptr_t>(address));
    return result;
  }
  template <typename Real>
  int ReleasePhysical(const Real& real, cuda_driver::CUmemGenericAllocationHandle handle) {
    if (!profiler_.enabled()) return real();
    CudaPhysicalMemory::Taken taken = physical_.Release(handle);
    const int result = real();
    if (result != cuda_driver::kSuccess) physical_.PutBack(std::move(taken));
    return result;
  }
  template <typename Real>
  int Map(const Caller& caller, const Real& real, cuda_driver::CUdeviceptr address, size_t bytes,
          cuda_driver::CUmemGenericAllocationHandle handle) {
    const int result = real();
    if (Succeeded(result)) physical_.Mapped(caller, address, bytes, handle, OnCurrentDevice(MemoryKind::kExternal));
    return result;
  }
  template <typename Real>
  int Unmap(const Real& real, cuda_driver::CUdeviceptr address, size_t bytes) {
    if (!profiler_.enabled()) return real();
    CudaPhysicalMemory::Taken taken = physical_.Unmap(address, bytes);
    const int result = real();
    if (result != cuda_driver::kSuccess) physical_.PutBack(std::move(taken));
    return result;
  }

  // Tiles of sparse arrays. Counted at the call, whenever the stream comes to it.
  template <typename Real>
  int MapTiles(const Real& real, const cuda_driver::ArrayMapInfo* list, unsigned count) {
    const int result = real();
    if (Succeeded(result)) RecordTiles(list, count);
    return result;
  }
  template <typename Real>
  int DestroyArray(BufferId id, const Real& real) {
    if (!profiler_.enabled()) return real();
    CudaPhysicalMemory::Taken taken = physical_.UnmapArray(id);
    const int result = Free(id, real);
    if (result != cuda_driver::kSuccess) physical_.PutBack(std::move(taken));
    return result;
  }

  // --- Memory of other processes: opened again, it is the same memory. ---

  template <typename Real>
  int OpenShared(const Caller& caller, const Real& real, const cuda_driver::CUdeviceptr* address) {
    const int result = real();
    if (Succeeded(result)) RecordShared(caller, *address);
    return result;
  }
  template <typename Real>
  int CloseShared(const Real& real, cuda_driver::CUdeviceptr address) {
    if (!profiler_.enabled()) return real();
    return shared_.Close(profiler_, reinterpret_cast<const void*>(address), cuda_driver::kSuccess, real);
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
    if (Succeeded(result)) RecordAllocNode(caller, graph, *params);
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
    const int result = real();
    if (Succeeded(result) && params->type == cuda_driver::kGraphNodeGraph &&
        params->child.ownership == cuda_driver::kOwnershipMove) {
      graphs_.Moved(params->child.graph, graph);
    }
    return result;
  }
  template <typename Real>
  int AddFreeNode(const Real& real, const void* graph, cuda_driver::CUdeviceptr address) {
    const int result = real();
    if (Succeeded(result)) graphs_.MadeFree(graph, BufferId(uint64_t{address}));
    return result;
  }
  template <typename Real>
  int Instantiate(const Real& real, const void* graph, void* const* executable) {
    const int result = real();
    if (Succeeded(result)) graphs_.Instantiated(graph, *executable);
    return result;
  }
  template <typename Real>
  int Launch(const Real& real, const void* executable) {
    if (!graphs_.used() || !profiler_.enabled()) return real();
    const CudaGraphMemory::Launched launched = graphs_.Launch(executable);
    const int result = real();
    if (result == cuda_driver::kSuccess) {
      for (const DeviceId device : launched.devices) questions_.Recorded(device);
    } else {
      graphs_.UndoLaunch(launched);
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
  int CreateContext(const Real& real, void* const* context, int device) {
    const int result = real();
    if (Succeeded(result)) AddContext(*context, device);
    return result;
  }
  // Everything of the context goes, but stream-ordered and physical memory.
  template <typename Real>
  int DestroyContext(const Real& real, const void* context) {
    Ended ended = EndContext(context);
    const int result = real();
    if (result != cuda_driver::kSuccess) PutBackContext(context, std::move(ended));
    return result;
  }
  // For a release too: the last one resets.
  template <typename Real>
  int ResetPrimaryContext(const Real& real, int device) {
    const int result = real();
    if (Succeeded(result) && !questions_.PrimaryContextActive(device)) DropPrimaryContext(device);
    return result;
  }

  // --- Program code: counted as what the device's free memory shrinks by, if no other call was under way. ---

  template <typename Real, typename Name>
  int Load(const Caller& caller, const Real& real, const Name& name) {
    const Measurement before = Measure();
    const int result = real();
    if (Succeeded(result)) RecordLoaded(caller, name(), before);
    return result;
  }
  template <typename Real>
  int Unload(BufferId id, const Real& real) {
    // What took no memory that could be measured has no record.
    return profiler_.FindBuffer(id).has_value() ? Free(id, real) : real();
  }

 private:
  struct Removed {
    BufferId id;
    FreedRecord record;
    CudaOwners::Owner owner = nullptr;
  };
  struct Ended {
    int device = -1;  // -1: not a context that we saw created
    std::vector<Removed> removed;
    std::vector<CudaPhysicalMemory::Taken> unmapped;  // from its arrays
  };
  struct Measurement {
    int64_t free_bytes = -1;
    uint64_t calls = 0;
  };

  bool Succeeded(int result) const { return result == cuda_driver::kSuccess && profiler_.enabled(); }
  Attributes OnCurrentDevice(MemoryKind kind) { return {questions_.Device(questions_.CurrentDevice()), kind, {}}; }
  Attributes At(const cuda_driver::MemLocation& location);

  void Record(const Caller& caller, const CudaBuffer& buffer);
  void RecordAsync(const Caller& caller, uint64_t address, size_t bytes, const CudaDriverStream& stream);
  void RecordTiles(const cuda_driver::ArrayMapInfo* list, unsigned count);
  void RecordShared(const Caller& caller, uint64_t address);
  void RecordAllocNode(const Caller& caller, const void* graph, const cuda_driver::MemAllocNodeParams& params);
  void RecordLoaded(const Caller& caller, BufferId id, const Measurement& before);
  Removed Remove(BufferId id);
  void PutBack(const Removed& removed);
  std::vector<Removed> RemoveAllOf(CudaOwners::Owner owner);

  void AddPool(const void* pool, int device) ABSL_LOCKS_EXCLUDED(mutex_);
  int RemovePool(const void* pool) ABSL_LOCKS_EXCLUDED(mutex_);  // its device, or -1
  void AddContext(const void* context, int device) ABSL_LOCKS_EXCLUDED(mutex_);
  Ended EndContext(const void* context) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBackContext(const void* context, Ended ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPrimaryContext(int device) ABSL_LOCKS_EXCLUDED(mutex_);
  Measurement Measure();

  Profiler& profiler_;
  CudaDriverQuestions& questions_;
  CudaPhysicalMemory physical_;
  CudaGraphMemory graphs_;
  SharedOpenings shared_;
  CudaOwners owners_;
  std::atomic<bool> has_contexts_{false};

  Mutex mutex_;
  std::unordered_map<const void*, int> pools_ ABSL_GUARDED_BY(mutex_);     // -> device
  std::unordered_map<const void*, int> contexts_ ABSL_GUARDED_BY(mutex_);  // created ones -> device
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_ADAPTER_H_
