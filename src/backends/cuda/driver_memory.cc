#include "src/backends/cuda/driver_memory.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "src/backends/cuda/adapter.h"

namespace hbmprof::internal {

BufferId CudaPhysicalMemory::NewId() { return CudaPhysicalId(++last_id_); }

void CudaPhysicalMemory::Created(const Caller& caller, DriverHandle handle, size_t bytes,
                                 const Attributes& attributes) {
  MutexLock lock(mutex_);
  auto memory = std::make_shared<Physical>();
  memory->id = NewId();
  memory->references = 1;
  memory->recorded = true;
  profiler_.RecordAllocFrom(caller, memory->id, bytes, attributes);
  handles_[handle] = std::move(memory);
}

void CudaPhysicalMemory::Imported(DriverHandle handle) {
  MutexLock lock(mutex_);
  auto memory = std::make_shared<Physical>();
  memory->id = NewId();
  memory->references = 1;
  handles_[handle] = std::move(memory);
}

void CudaPhysicalMemory::Retained(DriverHandle handle, uint64_t address) {
  MutexLock lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return;
  --mapping;
  if (address - mapping->first >= mapping->second.first) return;
  const std::shared_ptr<Physical>& memory = mapping->second.second;
  ++memory->references;
  handles_[handle] = memory;
}

void CudaPhysicalMemory::Mapped(const Caller& caller, uint64_t address, size_t bytes, DriverHandle handle,
                                const Attributes& attributes) {
  MutexLock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  const std::shared_ptr<Physical>& memory = found->second;
  ++memory->mappings;
  mappings_[address] = {bytes, memory};
  if (memory->recorded) return;
  memory->recorded = true;
  profiler_.RecordAllocFrom(caller, memory->id, bytes, attributes);
}

void CudaPhysicalMemory::EndIfUnused(const std::shared_ptr<Physical>& memory, Taken& taken) {
  if (memory->references > 0 || memory->mappings > 0) return;
  taken.ended.push_back({memory, memory->recorded ? profiler_.RecordFree(memory->id) : FreedRecord()});
}

CudaPhysicalMemory::Taken CudaPhysicalMemory::Release(DriverHandle handle) {
  MutexLock lock(mutex_);
  Taken taken;
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    profiler_.RecordFree(CudaPhysicalId(0));  // a name that no memory has
    return taken;
  }
  taken.handle = handle;
  taken.released = found->second;
  if (--taken.released->references == 0) handles_.erase(found);
  EndIfUnused(taken.released, taken);
  return taken;
}

CudaPhysicalMemory::Taken CudaPhysicalMemory::Unmap(uint64_t address, size_t bytes) {
  MutexLock lock(mutex_);
  Taken taken;
  for (auto mapping = mappings_.lower_bound(address); mapping != mappings_.end() && mapping->first - address < bytes &&
                                                      mapping->second.first <= bytes - (mapping->first - address);
       mapping = mappings_.erase(mapping)) {
    std::shared_ptr<Physical>& memory = mapping->second.second;
    --memory->mappings;
    EndIfUnused(memory, taken);
    taken.unmapped.push_back({mapping->first, mapping->second.first, std::move(memory)});
  }
  return taken;
}

void CudaPhysicalMemory::PutBack(Taken taken) {
  MutexLock lock(mutex_);
  for (Taken::Ended& ended : taken.ended) profiler_.RestoreRecord(ended.record);
  if (taken.released != nullptr) {
    ++taken.released->references;
    handles_[taken.handle] = std::move(taken.released);
  }
  for (Taken::Mapping& mapping : taken.unmapped) {
    ++mapping.memory->mappings;
    mappings_[mapping.address] = {mapping.bytes, std::move(mapping.memory)};
  }
  if (taken.tiles.empty()) return;
  for (const TileMapping& mapping : taken.tiles) ++mapping.memory->mappings;
  tiles_[taken.array.value()] = std::move(taken.tiles);
}

void CudaPhysicalMemory::Cut(BufferId array, const Tiles& tiles) {
  std::vector<TileMapping>& mappings = tiles_[array.value()];
  std::vector<TileMapping> cut;
  const auto meets = [&](const TileMapping& mapping) {
    bool meets = mapping.tiles.subresource == tiles.subresource;
    for (int d = 0; d < 3; ++d) {
      meets = meets && mapping.tiles.begin[d] < tiles.end[d] && tiles.begin[d] < mapping.tiles.end[d];
    }
    return meets;
  };
  const auto first_cut = std::partition(mappings.begin(), mappings.end(), std::not_fn(meets));
  cut.assign(std::make_move_iterator(first_cut), std::make_move_iterator(mappings.end()));
  mappings.erase(first_cut, mappings.end());
  Taken ended;
  for (TileMapping& mapping : cut) {
    Tiles& inside = mapping.tiles;  // shrinks to what is cut out
    const auto keep = [&](int d, uint64_t begin, uint64_t end) {
      if (begin >= end) return;
      TileMapping& kept = mappings.emplace_back(mapping);
      kept.tiles.begin[d] = begin;
      kept.tiles.end[d] = end;
      ++kept.memory->mappings;
    };
    for (int d = 0; d < 3; ++d) {
      keep(d, inside.begin[d], tiles.begin[d]);
      keep(d, tiles.end[d], inside.end[d]);
      inside.begin[d] = std::max(inside.begin[d], tiles.begin[d]);
      inside.end[d] = std::min(inside.end[d], tiles.end[d]);
    }
    --mapping.memory->mappings;
    EndIfUnused(mapping.memory, ended);
  }
  if (mappings.empty()) tiles_.erase(array.value());
}

void CudaPhysicalMemory::MappedTiles(BufferId array, const Tiles& tiles, DriverHandle handle) {
  has_tiles_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  Cut(array, tiles);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  ++found->second->mappings;
  tiles_[array.value()].push_back({tiles, found->second});
}

void CudaPhysicalMemory::UnmappedTiles(BufferId array, const Tiles& tiles) {
  if (!has_tiles_.load(std::memory_order_relaxed)) return;
  MutexLock lock(mutex_);
  Cut(array, tiles);
}

bool CudaPhysicalMemory::HasTiles(BufferId array) const {
  if (!has_tiles_.load(std::memory_order_relaxed)) return false;
  MutexLock lock(mutex_);
  return tiles_.count(array.value()) != 0;
}

std::vector<BufferId> CudaPhysicalMemory::ArraysWithTiles() const {
  std::vector<BufferId> arrays;
  MutexLock lock(mutex_);
  for (const auto& [array, mappings] : tiles_) arrays.push_back(BufferId(array));
  return arrays;
}

CudaPhysicalMemory::Taken CudaPhysicalMemory::UnmapArray(BufferId array) {
  Taken taken;
  if (!has_tiles_.load(std::memory_order_relaxed)) return taken;
  MutexLock lock(mutex_);
  const auto found = tiles_.find(array.value());
  if (found == tiles_.end()) return taken;
  taken.array = array;
  taken.tiles = std::move(found->second);
  tiles_.erase(found);
  for (const TileMapping& mapping : taken.tiles) {
    --mapping.memory->mappings;
    EndIfUnused(mapping.memory, taken);
  }
  return taken;
}

std::vector<BufferId> CudaPhysicalMemory::Live() const {
  MutexLock lock(mutex_);
  std::set<uint64_t> ids;
  const auto add = [&](const Physical& memory) {
    if (memory.recorded) ids.insert(memory.id.value());
  };
  for (const auto& [handle, memory] : handles_) add(*memory);
  for (const auto& [address, mapping] : mappings_) add(*mapping.second);
  for (const auto& [array, mappings] : tiles_) {
    for (const TileMapping& mapping : mappings) add(*mapping.memory);
  }
  return std::vector<BufferId>(ids.begin(), ids.end());
}

std::optional<LiveBuffer> CudaGraphMemory::Find(BufferId id) const {
  std::optional<LiveBuffer> live = profiler_.FindBuffer(id);
  if (live.has_value() && live->attributes.kind != MemoryKind::kGraph) live.reset();
  return live;
}

void CudaGraphMemory::Made(const Caller& caller, Graph graph, BufferId id, size_t bytes, const Attributes& attributes) {
  used_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  graphs_[graph].allocated.push_back({id, profiler_.PrepareRecordFrom(caller, id, bytes, attributes)});
}

void CudaGraphMemory::AddFree(Nodes& nodes, BufferId id) {
  const auto own = std::find_if(nodes.allocated.begin(), nodes.allocated.end(),
                                [&](const Node& node) { return node.id.value() == id.value(); });
  if (own != nodes.allocated.end()) {
    nodes.allocated.erase(own);
  } else {
    nodes.freed.push_back(id);
  }
}

void CudaGraphMemory::MadeFree(Graph graph, BufferId id) {
  if (!used()) return;
  MutexLock lock(mutex_);
  AddFree(graphs_[graph], id);
}

void CudaGraphMemory::Moved(Graph graph, Graph parent) {
  if (!used()) return;
  MutexLock lock(mutex_);
  const Removed moved = graphs_.extract(graph);
  if (moved.empty()) return;
  const Nodes& from = moved.mapped();
  Nodes& to = graphs_[parent];
  for (const BufferId id : from.freed) AddFree(to, id);
  to.allocated.insert(to.allocated.end(), from.allocated.begin(), from.allocated.end());
}

void CudaGraphMemory::Instantiated(Graph graph, Graph executable) {
  if (!used()) return;
  MutexLock lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) {
    graphs_.erase(executable);  // of one that had the handle before
    return;
  }
  Nodes nodes = found->second;
  graphs_[executable] = std::move(nodes);
}

CudaGraphMemory::Launched CudaGraphMemory::Launch(Graph executable) {
  Launched launched;
  if (!used()) return launched;
  MutexLock lock(mutex_);
  const auto found = graphs_.find(executable);
  if (found == graphs_.end()) return launched;
  for (const BufferId id : found->second.freed) {
    if (Find(id).has_value()) launched.freed.push_back(profiler_.RecordFree(id));
  }
  for (const Node& node : found->second.allocated) {
    // What an earlier launch allocated and nobody freed, a graph that frees at each launch allocates again.
    if (Find(node.id).has_value()) continue;
    profiler_.RestoreRecord(node.record);
    const std::optional<LiveBuffer> live = Find(node.id);
    if (!live.has_value()) continue;
    launched_.insert(node.id.value());
    launched.allocated.push_back(node.id);
    launched.devices.push_back(live->attributes.device);
  }
  return launched;
}

void CudaGraphMemory::UndoLaunch(const Launched& launched) {
  MutexLock lock(mutex_);
  for (const BufferId id : launched.allocated) {
    if (Find(id).has_value()) profiler_.RecordFree(id);
  }
  for (const FreedRecord& record : launched.freed) profiler_.RestoreRecord(record);
}

CudaGraphMemory::Removed CudaGraphMemory::Remove(Graph graph) {
  if (!used()) return {};
  MutexLock lock(mutex_);
  return graphs_.extract(graph);
}

void CudaGraphMemory::PutBack(Removed removed) {
  if (removed.empty()) return;
  MutexLock lock(mutex_);
  graphs_.insert(std::move(removed));
}

int64_t CudaGraphMemory::BytesInUse(DeviceId device) {
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

void CudaOwners::Add(Owner owner, BufferId id) {
  used_.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  owners_[id.value()] = owner;
}

CudaOwners::Owner CudaOwners::Remove(BufferId id) {
  if (!used_.load(std::memory_order_relaxed)) return nullptr;
  MutexLock lock(mutex_);
  const auto found = owners_.find(id.value());
  if (found == owners_.end()) return nullptr;
  const Owner owner = found->second;
  owners_.erase(found);
  return owner;
}

std::vector<BufferId> CudaOwners::TakeAll(Owner owner) {
  std::vector<BufferId> taken;
  if (!used_.load(std::memory_order_relaxed)) return taken;
  MutexLock lock(mutex_);
  for (auto buffer = owners_.begin(); buffer != owners_.end();) {
    if (buffer->second != owner) {
      ++buffer;
      continue;
    }
    taken.push_back(BufferId(buffer->first));
    buffer = owners_.erase(buffer);
  }
  return taken;
}

std::vector<BufferId> CudaOwners::All() const {
  MutexLock lock(mutex_);
  std::vector<BufferId> all;
  for (const auto& [id, owner] : owners_) all.push_back(BufferId(id));
  return all;
}

}  // namespace hbmprof::internal
