#include "src/backends/cuda/driver_adapter.h"

#include <algorithm>
#include <functional>

namespace hbmprof::internal {
namespace {

struct ThreadCalls {
  int depth = 0;
  const Caller* above = nullptr;
};
thread_local ThreadCalls thread_calls;

}  // namespace

TrackedCudaCall::TrackedCudaCall(const Caller& caller)
    : outermost_(thread_calls.depth++ == 0), caller_(thread_calls.above != nullptr ? *thread_calls.above : caller) {
  if (outermost_) count_.fetch_add(1, std::memory_order_relaxed);
}

TrackedCudaCall::~TrackedCudaCall() {
  --thread_calls.depth;
  if (outermost_) count_.fetch_add(1, std::memory_order_relaxed);
}

std::atomic<uint64_t> TrackedCudaCall::count_{0};

void TrackedCudaCall::SetCallerAbove(const Caller* caller) { thread_calls.above = caller; }

CudaBuffer CudaDriverAdapter::Imported(cuda_driver::CUdeviceptr address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  return {pointer,
          questions_.AddressRangeBytes(pointer),
          {questions_.Device(questions_.CurrentDevice()), MemoryKind::kExternal, questions_.StreamOrderedAllocator()}};
}

Attributes CudaDriverAdapter::At(const cuda_driver::MemLocation& location) {
  if (location.type == cuda_driver::kLocationDevice) return {questions_.Device(location.id), MemoryKind::kVmm, {}};
  const bool host =
      location.type >= cuda_driver::kLocationHost && location.type <= cuda_driver::kLocationHostNumaCurrent;
  return OnCurrentDevice(host ? MemoryKind::kPinnedHost : MemoryKind::kVmm);
}

void CudaDriverAdapter::Record(const Caller& caller, const CudaBuffer& buffer) {
  profiler_.RecordAllocFrom(caller, buffer.id, buffer.bytes, buffer.attributes);
  questions_.Recorded(buffer.attributes.device);
  if (!has_contexts_.load(std::memory_order_relaxed)) return;
  const void* context = questions_.CurrentContext();
  MutexLock lock(mutex_);
  if (contexts_.count(context) != 0) owners_.Add(context, buffer.id);
}

void CudaDriverAdapter::RecordAsync(const Caller& caller, uint64_t address, size_t bytes,
                                    const CudaDriverStream& stream) {
  const CudaDriverQuestions::Pointer pointer = questions_.DescribePointer(reinterpret_cast<const void*>(address));
  const int device = pointer.device >= 0 ? pointer.device : questions_.CurrentDevice();
  Attributes attributes{questions_.Device(device), pointer.kind, questions_.StreamOrderedAllocator()};
  const CudaDriverQuestions::Capture capture = questions_.CaptureOf(stream);
  if (capture.active) attributes.kind = MemoryKind::kGraph;
  if (capture.graph != nullptr) {
    graphs_.Made(caller, capture.graph, BufferId(address), bytes, attributes);
    return;
  }
  profiler_.RecordAllocFrom(caller, BufferId(address), bytes, attributes);
  questions_.Recorded(attributes.device);
}

void CudaDriverAdapter::RecordAllocNode(const Caller& caller, const void* graph,
                                        const cuda_driver::MemAllocNodeParams& params) {
  Attributes attributes = At(params.pool.location);
  attributes.kind = MemoryKind::kGraph;
  attributes.allocator = questions_.StreamOrderedAllocator();
  graphs_.Made(caller, graph, BufferId(uint64_t{params.address}), params.bytes, attributes);
}

void CudaDriverAdapter::RecordTiles(const cuda_driver::ArrayMapInfo* list, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const cuda_driver::ArrayMapInfo& info = list[i];
    const BufferId array = info.resource_type == cuda_driver::kResourceMipmappedArray
                               ? CudaMipmappedArrayId(info.resource)
                               : CudaArrayId(info.resource);
    CudaPhysicalMemory::Tiles tiles;
    // An array whose mapping was deferred is mapped as a whole, and its extent is nothing: one tile.
    if (info.subresource_type == cuda_driver::kSubresourceMipTail) {
      tiles = {~uint64_t{info.mip_tail.layer},
               {info.mip_tail.offset, 0, 0},
               {info.mip_tail.offset + std::max<uint64_t>(info.mip_tail.size, 1), 1, 1}};
    } else {
      tiles.subresource = uint64_t{info.sparse_level.level} << 32 | info.sparse_level.layer;
      for (int d = 0; d < 3; ++d) {
        tiles.begin[d] = info.sparse_level.offset[d];
        tiles.end[d] = tiles.begin[d] + std::max(info.sparse_level.extent[d], 1u);
      }
    }
    if (info.operation == cuda_driver::kOperationMap) {
      physical_.MappedTiles(array, tiles, info.memory);
    } else {
      physical_.UnmappedTiles(array, tiles);
    }
  }
}

void CudaDriverAdapter::RecordShared(const Caller& caller, uint64_t address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const Attributes attributes = OnCurrentDevice(MemoryKind::kExternal);
  const size_t bytes = questions_.AddressRangeBytes(pointer);
  shared_.Open(pointer, attributes.device, [&] { profiler_.RecordAllocFrom(caller, pointer, bytes, attributes); });
}

CudaDriverAdapter::Removed CudaDriverAdapter::Remove(BufferId id) {
  if (id.is_null() || !profiler_.enabled()) return {};
  const CudaOwners::Owner owner = owners_.Remove(id);
  return {id, profiler_.RecordFree(id), owner};
}

void CudaDriverAdapter::PutBack(const Removed& removed) {
  if (!removed.record) return;
  profiler_.RestoreRecord(removed.record);
  if (removed.owner != nullptr) owners_.Add(removed.owner, removed.id);
}

std::vector<CudaDriverAdapter::Removed> CudaDriverAdapter::RemoveAllOf(CudaOwners::Owner owner) {
  std::vector<Removed> removed;
  for (const BufferId id : owners_.TakeAll(owner)) removed.push_back({id, profiler_.RecordFree(id), owner});
  return removed;
}

void CudaDriverAdapter::AddPool(const void* pool, int device) {
  MutexLock lock(mutex_);
  pools_[pool] = device;
}

int CudaDriverAdapter::RemovePool(const void* pool) {
  MutexLock lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return -1;
  const int device = found->second;
  pools_.erase(found);
  return device;
}

void CudaDriverAdapter::AddContext(const void* context, int device) {
  has_contexts_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  contexts_[context] = device;
}

CudaDriverAdapter::Ended CudaDriverAdapter::EndContext(const void* context) {
  Ended ended;
  {
    MutexLock lock(mutex_);
    const auto found = contexts_.find(context);
    if (found == contexts_.end()) return ended;
    ended.device = found->second;
    contexts_.erase(found);
  }
  ended.removed = RemoveAllOf(context);
  for (const Removed& removed : ended.removed) {
    if (physical_.HasTiles(removed.id)) ended.unmapped.push_back(physical_.UnmapArray(removed.id));
  }
  return ended;
}

void CudaDriverAdapter::PutBackContext(const void* context, Ended ended) {
  if (ended.device < 0) return;
  for (const Removed& removed : ended.removed) PutBack(removed);
  for (CudaPhysicalMemory::Taken& taken : ended.unmapped) physical_.PutBack(std::move(taken));
  AddContext(context, ended.device);
}

void CudaDriverAdapter::DropPrimaryContext(int device) {
  const DeviceId id = questions_.Device(device);
  // What is not the primary context's is taken out for the while; it keeps its stacks.
  std::vector<FreedRecord> kept;
  const auto is_on_device = [&](BufferId buffer) {
    const auto live = profiler_.FindBuffer(buffer);
    return live.has_value() && live->attributes.device == id;
  };
  const auto keep = [&](BufferId buffer) {
    if (is_on_device(buffer)) kept.push_back(profiler_.RecordFree(buffer));
  };
  std::vector<BufferId> arrays = physical_.ArraysWithTiles();
  arrays.erase(std::remove_if(arrays.begin(), arrays.end(), std::not_fn(is_on_device)), arrays.end());
  for (const BufferId buffer : physical_.Live()) keep(buffer);
  for (const BufferId buffer : owners_.All()) keep(buffer);
  profiler_.DropDevice(id, questions_.StreamOrderedAllocator());
  for (const FreedRecord& record : kept) profiler_.RestoreRecord(record);
  for (const BufferId array : arrays) {
    if (!profiler_.FindBuffer(array).has_value()) physical_.UnmapArray(array);
  }
  shared_.ForgetDevice(id);
}

CudaDriverAdapter::Measurement CudaDriverAdapter::Measure() {
  if (!profiler_.enabled()) return {};
  return {questions_.FreeBytes(), TrackedCudaCall::Count()};
}

void CudaDriverAdapter::RecordLoaded(const Caller& caller, BufferId id, const Measurement& before) {
  if (before.free_bytes < 0) return;
  const int64_t after = questions_.FreeBytes();
  const int64_t bytes = before.free_bytes - after;
  const bool alone = TrackedCudaCall::Count() == before.calls;
  if (after < 0 || bytes <= 0 || !alone) return;
  Record(caller, {id, static_cast<size_t>(bytes), OnCurrentDevice(MemoryKind::kExecutable)});
}

}  // namespace hbmprof::internal
