#include "src/backends/calls/memory.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "src/backends/calls/ranges.h"
#include "src/base/spin_lock.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {

std::shared_ptr<PhysicalMemory::Physical> PhysicalMemory::NewMemory() {
  auto memory = std::make_shared<Physical>();
  memory->id = PhysicalId(++last_id_);
  memory->references = 1;
  return memory;
}

void PhysicalMemory::Created(const Caller& caller, DriverHandle handle, size_t bytes, const Attributes& attributes) {
  BufferId id;
  {
    MutexLock lock(mutex_);
    const std::shared_ptr<Physical> memory = NewMemory();
    memory->recorded = true;
    handles_[handle] = memory;
    id = memory->id;
  }
  // No other thread can release the handle before the call that returns it has returned.
  profiler_.RecordAllocFrom(caller, id, bytes, attributes);
}

void PhysicalMemory::Imported(DriverHandle handle) {
  MutexLock lock(mutex_);
  handles_[handle] = NewMemory();
}

void PhysicalMemory::Retained(DriverHandle handle, uint64_t address) {
  MutexLock lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return;
  --mapping;
  if (address - mapping->first >= mapping->second.bytes) return;
  const std::shared_ptr<Physical>& memory = mapping->second.memory;
  handles_[handle] = memory;
  ++memory->references;
}

BufferId PhysicalMemory::Mapped(uint64_t address, size_t bytes, DriverHandle handle) {
  MutexLock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return {};
  const std::shared_ptr<Physical>& memory = found->second;
  // The driver refuses to map over a mapping: the end of what is here was not seen, as recording was off or the device
  // was closed.
  for (auto old = mappings_.lower_bound(address); old != mappings_.end() && old->first - address < bytes;) {
    Physical& unmapped = *old->second.memory;
    if (old->second.kept) {
      ++old;
      continue;
    }
    const bool is_unused = --unmapped.mappings == 0 && unmapped.references == 0;
    if (is_unused && profiler_.FindBuffer(unmapped.id).has_value()) profiler_.RecordFree(unmapped.id);
    old = mappings_.erase(old);
  }
  mappings_.insert({address, {bytes, memory}});
  DriverRanges::Instance().AddMapped(address, bytes, memory->id);
  ++memory->mappings;
  return std::exchange(memory->recorded, true) ? BufferId() : memory->id;
}

bool PhysicalMemory::EndIfUnused(Physical& memory, Held* held) {
  const bool is_held = std::exchange(memory.held, memory.references == 0 && memory.mappings == memory.kept);
  if (!memory.held || !memory.recorded || (is_held && memory.mappings != 0)) return false;
  const std::optional<LiveBuffer> live = memory.mappings == 0 ? std::nullopt : profiler_.FindBuffer(memory.id);
  const bool has_ended = profiler_.RecordFree(memory.id).has_value();
  if (!live.has_value()) return has_ended;
  memory.id = PhysicalId(++last_id_);
  held->emplace_back(memory.id, *live);
  return has_ended;
}

void PhysicalMemory::Record(const Caller& caller, const Held& held) {
  for (const auto& [id, live] : held) {
    const AllocatorId label = profiler_.Allocator("released, still held");
    const Attributes attributes = {live.attributes.device, MemoryKind::kVmm, label};
    profiler_.RecordAllocFrom(caller, id, static_cast<size_t>(live.bytes), attributes);
  }
}

bool PhysicalMemory::Release(DriverHandle handle, const Caller& caller) {
  Held held;
  bool has_ended = false;
  {
    MutexLock lock(mutex_);
    const auto found = handles_.find(handle);
    if (found == handles_.end()) {
      profiler_.RecordFree(PhysicalId(0));  // no memory has this id, so this counts a foreign free
      return false;
    }
    const std::shared_ptr<Physical> released = found->second;
    if (--released->references == 0) handles_.erase(found);
    has_ended = EndIfUnused(*released, &held);
  }
  Record(caller, held);
  return has_ended;
}

int PhysicalMemory::Unmap(uint64_t address, size_t bytes, bool* has_ended, bool keeps, const Caller& caller) {
  Held held;
  int count = 0;
  {
    MutexLock lock(mutex_);
    auto mapping = mappings_.lower_bound(address);
    if (bytes == 0 && mapping != mappings_.end() && mapping->first == address) bytes = mapping->second.bytes;
    while (mapping != mappings_.end() && mapping->first - address < bytes &&
           mapping->second.bytes <= bytes - (mapping->first - address)) {
      Mapping& unmapped = mapping->second;
      Physical& memory = *unmapped.memory;
      DriverRanges::Instance().Remove(mapping->first);
      memory.kept += (keeps ? 1 : 0) - (std::exchange(unmapped.kept, keeps) ? 1 : 0);
      if (!keeps) --memory.mappings;
      *has_ended = EndIfUnused(memory, &held) || *has_ended;
      mapping = keeps ? std::next(mapping) : mappings_.erase(mapping);
      ++count;
    }
  }
  Record(caller, held);
  return count;
}

std::vector<BufferId> PhysicalMemory::Live() const {
  MutexLock lock(mutex_);
  std::set<uint64_t> ids;
  const auto add = [&](const Physical& memory) {
    if (memory.recorded) ids.insert(memory.id.value());
  };
  for (const auto& [handle, memory] : handles_) add(*memory);
  for (const auto& [address, mapping] : mappings_) add(*mapping.memory);
  return std::vector<BufferId>(ids.begin(), ids.end());
}

void PhysicalMemory::Clear() {
  MutexLock lock(mutex_);
  handles_.clear();
  mappings_.clear();
}

std::optional<LiveBuffer> GraphMemory::Find(BufferId id) const {
  std::optional<LiveBuffer> live = profiler_.FindBuffer(id);
  if (live.has_value() && live->attributes.kind != MemoryKind::kGraph) live.reset();
  return live;
}

void GraphMemory::AllocNodeMade(const Caller& caller, Graph graph, BufferId id, size_t bytes,
                                const Attributes& attributes) {
  used_.store(true, std::memory_order_relaxed);
  const uint32_t site = profiler_.KeepSite(caller, bytes, attributes);
  MutexLock lock(mutex_);
  graphs_[graph].allocated.push_back({id, site, bytes, attributes.device});
}

void GraphMemory::AddFree(Nodes& nodes, BufferId id) {
  const auto own = std::find_if(nodes.allocated.begin(), nodes.allocated.end(),
                                [&](const Node& node) { return node.id.value() == id.value(); });
  if (own != nodes.allocated.end()) {
    nodes.allocated.erase(own);
  } else {
    nodes.freed.push_back(id);
  }
}

void GraphMemory::FreeNodeMade(Graph graph, BufferId id) {
  if (!used()) return;
  MutexLock lock(mutex_);
  AddFree(graphs_[graph], id);
}

void GraphMemory::Moved(Graph graph, Graph parent) {
  if (!used()) return;
  MutexLock lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return;
  const Nodes& from = found->second;
  Nodes& to = graphs_[parent];
  to.freed.reserve(to.freed.size() + from.freed.size());
  to.allocated.reserve(to.allocated.size() + from.allocated.size());
  // From here on nothing can fail.
  for (const BufferId id : from.freed) AddFree(to, id);
  to.allocated.insert(to.allocated.end(), from.allocated.begin(), from.allocated.end());
  graphs_.erase(found);
}

void GraphMemory::Instantiated(Graph graph, Graph executable) {
  if (!used()) return;
  MutexLock lock(mutex_);
  graphs_.erase(executable);  // the nodes of an earlier graph with this handle
  const auto found = graphs_.find(graph);
  if (found != graphs_.end()) graphs_.emplace(executable, found->second);
}

GraphMemory::Launched GraphMemory::Launch(Graph executable) {
  Launched launched;
  if (!used()) return launched;
  MutexLock lock(mutex_);
  const auto found = graphs_.find(executable);
  if (found == graphs_.end()) return launched;
  const Nodes& nodes = found->second;
  launched.allocated.reserve(nodes.allocated.size());
  launched.devices.reserve(nodes.allocated.size());
  for (const Node& node : nodes.allocated) launched_.insert(node.id.value());
  // From here on nothing can fail.
  for (const BufferId id : nodes.freed) {
    if (Find(id).has_value()) launched.has_freed = profiler_.RecordFree(id).has_value() || launched.has_freed;
  }
  for (const Node& node : nodes.allocated) {
    // The memory is still live since an earlier launch. A graph that was instantiated to free its memory at each launch
    // allocates it again.
    if (Find(node.id).has_value()) continue;
    if (!profiler_.RecordAllocAt(node.site, node.id, node.bytes)) continue;
    DriverRanges::Instance().Add(node.id, node.bytes, true);
    launched.allocated.push_back(node.id);
    launched.devices.push_back(node.device);
  }
  return launched;
}

void GraphMemory::UndoLaunch(const Launched& launched) {
  MutexLock lock(mutex_);
  for (const BufferId id : launched.allocated) {
    if (Find(id).has_value()) profiler_.RecordFree(id);
  }
}

void GraphMemory::Remove(Graph graph) {
  if (!used()) return;
  MutexLock lock(mutex_);
  graphs_.erase(graph);
}

void GraphMemory::Clear() {
  MutexLock lock(mutex_);
  graphs_.clear();
}

int64_t GraphMemory::BytesInUse(DeviceId device) {
  if (!used()) return 0;
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (auto id = launched_.begin(); id != launched_.end();) {
    const std::optional<LiveBuffer> live = Find(BufferId(*id));
    if (live.has_value() && live->attributes.device == device) bytes += live->bytes;
    id = live.has_value() ? std::next(id) : launched_.erase(id);
  }
  return bytes;
}

bool SharedOpenings::IsFirst(const void* address, DeviceId device, const void* context) {
  MutexLock lock(mutex_);
  Opening& opening = openings_[address];
  opening.device = device;
  opening.context = context;
  return ++opening.count == 1;
}

void SharedOpenings::OpenUnrecorded(const void* address, const void* context) {
  MutexLock lock(mutex_);
  Opening& opening = openings_[address];
  opening.context = context;
  ++opening.count;
}

bool SharedOpenings::Close(const void* address) {
  MutexLock lock(mutex_);
  const auto found = openings_.find(address);
  if (found != openings_.end()) {
    if (--found->second.count > 0) return false;
    openings_.erase(found);
  }
  return profiler_.RecordFree(address).has_value();
}

void SharedOpenings::RemoveDevice(DeviceId device) {
  MutexLock lock(mutex_);
  for (auto one = openings_.begin(); one != openings_.end();) {
    const bool ends = one->second.device == device && one->second.context == nullptr;
    one = ends ? openings_.erase(one) : std::next(one);
  }
}

void SharedOpenings::RemoveContext(const void* context) {
  MutexLock lock(mutex_);
  for (auto one = openings_.begin(); one != openings_.end();) {
    const bool ends = one->second.context == context;
    if (ends) profiler_.RecordFree(one->first);
    one = ends ? openings_.erase(one) : std::next(one);
  }
}

std::vector<BufferId> SharedOpenings::OfContexts() const {
  std::vector<BufferId> ids;
  MutexLock lock(mutex_);
  for (const auto& [address, opening] : openings_) {
    if (opening.context != nullptr) ids.push_back(address);
  }
  return ids;
}

void SharedOpenings::Clear() {
  MutexLock lock(mutex_);
  openings_.clear();
}

void Contexts::Created(const void* handle) {
  auto context = std::make_shared<Context>();
  MutexLock lock(mutex_);
  handles_[handle] = std::move(context);
}

Contexts::Owner Contexts::Find(const void* handle) {
  MutexLock lock(mutex_);
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

void Contexts::Recorded(const Owner& owner, BufferId id) {
  MutexLock lock(mutex_);
  const bool completed =
      owner->is_alive && TryRun([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { buffers_[id.value()] = owner; });
  if (completed) return;
  // A record that is not added to its context must not live longer than the context.
  const std::optional<int64_t> bytes = profiler_.RecordFree(id);
  if (owner->is_alive) profiler_.RecordDropped(static_cast<size_t>(bytes.value_or(0)));
}

void Contexts::Forget(BufferId id) {
  MutexLock lock(mutex_);
  buffers_.erase(id.value());
}

void Contexts::Clear() {
  MutexLock lock(mutex_);
  handles_.clear();
  buffers_.clear();
}

bool Contexts::End(const void* handle) {
  MutexLock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return false;
  const Owner owner = found->second;
  owner->is_alive = false;
  handles_.erase(found);
  for (auto buffer = buffers_.begin(); buffer != buffers_.end();) {
    const bool is_owned = buffer->second == owner;
    if (is_owned) profiler_.RecordFree(BufferId(buffer->first));
    buffer = is_owned ? buffers_.erase(buffer) : std::next(buffer);
  }
  return true;
}

std::vector<BufferId> Contexts::AllBuffers() const {
  std::vector<BufferId> all;
  MutexLock lock(mutex_);
  all.reserve(buffers_.size());
  for (const auto& [id, owned] : buffers_) all.push_back(BufferId(id));
  return all;
}

void DriverPools::Follow(bool follow) {
  const void* pool = nullptr;
  const auto has_pool = [&] {
    MutexLock lock(mutex_);
    is_followed_ = follow;
    if (!pools_.empty()) pool = pools_.begin()->first;
    return !pools_.empty();
  };
  while (has_pool()) Remove(pool);
}

void DriverPools::Created(const void* handle, const DriverPool& pool) {
  MutexLock lock(mutex_);
  pools_.erase(handle);
  if (is_followed_) pools_.try_emplace(handle, pool);
}

void DriverPools::Remove(const void* pool) {
  Pools::node_type removed;
  {
    MutexLock lock(mutex_);
    removed = pools_.extract(pool);
  }
  if (removed.empty()) return;
  const Pool& destroyed = removed.mapped();
  Backoff backoff;
  while (destroyed.readers.load(std::memory_order_acquire) != 0) backoff.Wait();
}

void DriverPools::RemoveDevice(int device) {
  const void* last = nullptr;
  while (Pool* const pool = Next(device, &last)) {
    { const Reader reader(pool); }
    Remove(last);
  }
}

DriverPools::Pool* DriverPools::Find(const void* pool) {
  MutexLock lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return nullptr;
  found->second.readers.fetch_add(1, std::memory_order_relaxed);
  return &found->second;
}

DriverPools::Pool* DriverPools::Next(int device, const void** last) {
  MutexLock lock(mutex_);
  for (auto pool = pools_.upper_bound(*last); pool != pools_.end(); ++pool) {
    if (pool->second.pool.device != device) continue;
    pool->second.readers.fetch_add(1, std::memory_order_relaxed);
    *last = pool->first;
    return &pool->second;
  }
  return nullptr;
}

}  // namespace hbmprof::internal
