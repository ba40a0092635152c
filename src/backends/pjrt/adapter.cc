// Order of events: a record is made before its handle is entered, and ends after its handle was taken out; in between
// no lock is held, since a call stack is captured or the ledger entered there.
#include "src/backends/pjrt/adapter.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "hbmprof/tag.h"
#include "src/base/completes.h"

namespace hbmprof::internal {
namespace {

// Name spaces of BufferId::Handle: numbers of records, and handles nobody recorded.
constexpr uint8_t kRecords = 8;
constexpr uint8_t kUnknownHandles = 9;

// The record numbers of all plugins are distinct: they share a profiler.
std::atomic<uint64_t> next_record{1};

}  // namespace

BufferId PjrtBooks::Record(const Caller& caller, const PjrtMemory& memory) {
  const BufferId id = BufferId::Handle(kRecords, next_record.fetch_add(1, std::memory_order_relaxed));
  const ScopedTag space(memory.space.empty() ? "" : "memory", memory.space);
  const ScopedTag shape(memory.shape.empty() ? "" : "shape", memory.shape);
  return profiler_.RecordAllocFrom(caller, id, memory.bytes, memory.attributes) ? id : BufferId();
}

template <typename Enter>
void PjrtBooks::EnterOrEnd(absl::Span<const BufferId> ids, const Enter& enter) {
  if (Completes(enter)) return;
  for (const BufferId id : ids) {
    if (!id.is_null()) profiler_.RecordFree(id);
  }
  throw std::bad_alloc();
}

std::vector<BufferId> PjrtBooks::RecordAll(const Caller& caller, absl::Span<const PjrtMemory> pieces) {
  std::vector<BufferId> ids(pieces.size());
  EnterOrEnd(ids, [&] {
    for (size_t i = 0; i < pieces.size(); ++i) ids[i] = Record(caller, pieces[i]);
  });
  return ids;
}

void PjrtBooks::Insert(PjrtHandle handle, const Buffer& buffer) {
  Forgotten stale;
  absl::InlinedVector<BufferId, 2> ended;
  {
    MutexLock lock(mutex_);
    const auto entry = buffers_.find(handle);
    if (entry == buffers_.end()) {
      if (spare_.empty()) {
        buffers_.emplace(handle, buffer);
      } else {
        spare_.back().key() = handle;
        spare_.back().mapped() = buffer;
        buffers_.insert(std::move(spare_.back()));
        spare_.pop_back();
      }
      return;
    }
    // The end of the handle that was here before was never seen.
    if (entry->second.holds_memory() && LetGo(entry->second.memory, &stale)) ended.push_back(entry->second.memory);
    if (!entry->second.alias.is_null()) ended.push_back(entry->second.alias);
    entry->second = buffer;
  }
  Free(ended, &stale);
}

bool PjrtBooks::LetGo(BufferId memory, Forgotten* forgotten) {
  const auto more = more_holders_.find(memory.value());
  if (more == more_holders_.end()) return true;
  forgotten->references_.push_back(memory);
  if (--more->second == 0) more_holders_.erase(more);
  return false;
}

void PjrtBooks::Free(absl::Span<const BufferId> ids, Forgotten* forgotten) {
  for (const BufferId id : ids) {
    if (id.is_null()) continue;
    const FreedRecord record = profiler_.RecordFree(id);
    // What cannot be remembered has ended all the same, as it does unless the plugin refuses.
    static_cast<void>(Completes([&] { forgotten->records_.push_back(record); }));
  }
}

void PjrtBooks::Foreign(PjrtHandle handle) {
  profiler_.RecordFree(BufferId::Handle(kUnknownHandles, reinterpret_cast<uintptr_t>(handle)));
}

void PjrtBooks::Created(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory) {
  if (buffer == nullptr) return;
  Buffer made;
  made.client = client;
  made.memory = Record(caller, memory);
  made.made_by = caller.pc;
  EnterOrEnd({made.memory}, [&] { Insert(buffer, made); });
}

void PjrtBooks::CreatedView(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory) {
  CreatedAlias(caller, client, buffer, nullptr, memory);
}

void PjrtBooks::CreatedAlias(const Caller& caller, PjrtHandle client, PjrtHandle buffer, PjrtHandle source,
                             const PjrtMemory& memory) {
  if (buffer == nullptr) return;
  PjrtMemory view = memory;
  view.attributes.kind = MemoryKind::kAlias;
  Buffer made;
  made.client = client;
  made.alias = Record(caller, view);
  made.made_by = caller.pc;
  EnterOrEnd({made.alias}, [&] {
    Insert(buffer, made);
    if (source == nullptr) return;
    MutexLock lock(mutex_);
    const auto found = buffers_.find(source);
    const auto entry = buffers_.find(buffer);
    if (found == buffers_.end() || entry == buffers_.end() || !found->second.holds_memory()) return;
    if (!Completes([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { Share(found->second.memory); })) {
      buffers_.erase(entry);
      throw std::bad_alloc();
    }
    entry->second.memory = found->second.memory;
  });
}

void PjrtBooks::AwaitsFulfilment(PjrtHandle callback, PjrtHandle buffer) {
  if (callback == nullptr) return;
  MutexLock lock(mutex_);
  awaiting_[callback] = buffer;
}

void PjrtBooks::Fulfilled(PjrtHandle callback, PjrtHandle source) {
  MutexLock lock(mutex_);
  const auto awaiting = awaiting_.find(callback);
  if (awaiting == awaiting_.end()) return;
  const auto alias = buffers_.find(awaiting->second);
  const auto found = buffers_.find(source);
  awaiting_.erase(awaiting);
  if (alias == buffers_.end() || found == buffers_.end() || !found->second.holds_memory()) return;
  if (!alias->second.memory.is_null() || alias->second.deleted) return;
  Share(found->second.memory);
  alias->second.memory = found->second.memory;
}

bool PjrtBooks::Moved(PjrtHandle source, PjrtHandle buffer) {
  Buffer made;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(source);
    if (found == buffers_.end() || found->second.deleted) return false;
    made = found->second;
    found->second.memory = BufferId();
    found->second.alias = BufferId();
    found->second.deleted = true;
  }
  EnterOrEnd({made.memory, made.alias}, [&] { Insert(buffer, made); });
  return true;
}

void PjrtBooks::TransferCreated(const Caller& caller, PjrtHandle client, PjrtHandle manager,
                                const std::vector<PjrtMemory>& memory) {
  if (manager == nullptr) return;
  Transfer transfer;
  transfer.client = client;
  transfer.made_by = caller.pc;
  transfer.memory = RecordAll(caller, memory);
  EnterOrEnd(transfer.memory, [&] {
    MutexLock lock(mutex_);
    Transfer& entry = transfers_[manager];
    std::swap(entry, transfer);
  });
}

bool PjrtBooks::TransferRetrieved(PjrtHandle manager, int index, PjrtHandle buffer) {
  Buffer made;
  {
    MutexLock lock(mutex_);
    const auto found = transfers_.find(manager);
    if (found == transfers_.end()) return false;
    Transfer& transfer = found->second;
    if (index < 0 || static_cast<size_t>(index) >= transfer.memory.size()) return false;
    made.client = transfer.client;
    made.made_by = transfer.made_by;
    made.memory = std::exchange(transfer.memory[static_cast<size_t>(index)], BufferId());
  }
  EnterOrEnd({made.memory}, [&] { Insert(buffer, made); });
  return true;
}

PjrtBooks::Forgotten PjrtBooks::TransferDestroyed(PjrtHandle manager) {
  Forgotten forgotten;
  {
    MutexLock lock(mutex_);
    const auto found = transfers_.find(manager);
    if (found == transfers_.end()) return forgotten;
    forgotten.transfers_.emplace_back(manager, std::move(found->second));
    transfers_.erase(found);
  }
  Free(forgotten.transfers_.front().second.memory, &forgotten);
  return forgotten;
}

PjrtBooks::Forgotten PjrtBooks::Deleted(PjrtHandle buffer) {
  Forgotten forgotten;
  BufferId ended;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end() || found->second.deleted) return forgotten;
    forgotten.buffers_.emplace_back(buffer, found->second);
    found->second.deleted = true;
    if (found->second.memory.is_null() || found->second.holds_memory()) return forgotten;
    if (LetGo(found->second.memory, &forgotten)) ended = found->second.memory;
  }
  if (!ended.is_null()) Free({ended}, &forgotten);
  return forgotten;
}

void PjrtBooks::KeepHolding(Handles& buffers) {
  MutexLock lock(mutex_);
  const auto holds = [&](PjrtHandle handle) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = buffers_.find(handle);
    return found != buffers_.end() && !found->second.deleted && !found->second.memory.is_null();
  };
  buffers.erase(std::remove_if(buffers.begin(), buffers.end(), [&](PjrtHandle handle) { return !holds(handle); }),
                buffers.end());
}

PjrtBooks::Forgotten PjrtBooks::Destroyed(PjrtHandle buffer, bool* known) {
  Forgotten forgotten;
  *known = true;
  if (buffer == nullptr) return forgotten;
  absl::InlinedVector<BufferId, 2> ended;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) {
      *known = false;
    } else {
      const Buffer& entry = found->second;
      forgotten.buffers_.emplace_back(buffer, entry);
      if (entry.holds_memory() && LetGo(entry.memory, &forgotten)) ended.push_back(entry.memory);
      if (!entry.alias.is_null()) ended.push_back(entry.alias);
      Buffers::node_type node = buffers_.extract(found);
      if (spare_.size() < kMostSpareNodes) spare_.push_back(std::move(node));
    }
  }
  if (!*known) Foreign(buffer);
  Free(ended, &forgotten);
  return forgotten;
}

void PjrtBooks::ReferenceAdded(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found != buffers_.end() && !found->second.deleted) ++found->second.external_references;
}

void PjrtBooks::ReferenceDropped(PjrtHandle buffer) {
  BufferId ended;
  Forgotten forgotten;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end() || found->second.external_references == 0) return;
    Buffer& entry = found->second;
    if (--entry.external_references > 0 || !entry.deleted || entry.memory.is_null()) return;
    if (LetGo(entry.memory, &forgotten)) ended = entry.memory;
  }
  if (!ended.is_null()) Free({ended}, &forgotten);
}

void PjrtBooks::Loaded(const Caller& caller, PjrtHandle executable, std::shared_ptr<const PjrtProgram> program) {
  if (executable == nullptr) return;
  Executable loaded;
  loaded.client = program->client;
  loaded.made_by = caller.pc;
  {
    const ScopedTag name("executable", program->name);
    const ScopedTag temp(program->temp_bytes < 0 ? "" : "temp_bytes", std::to_string(program->temp_bytes));
    const ScopedTag peak(program->peak_bytes < 0 ? "" : "peak_bytes", std::to_string(program->peak_bytes));
    std::vector<PjrtMemory> code(program->devices.size());
    for (size_t i = 0; i < code.size(); ++i) {
      code[i].bytes = static_cast<size_t>(std::max<int64_t>(program->code_bytes, 0));
      code[i].attributes.kind = MemoryKind::kExecutable;
      code[i].attributes.device = program->devices[i];
    }
    loaded.code = RecordAll(caller, code);
  }
  loaded.program = std::move(program);
  EnterOrEnd(loaded.code, [&] {
    MutexLock lock(mutex_);
    std::swap(executables_[executable], loaded);
  });
  Forgotten stale;
  Free(loaded.code, &stale);
}

std::shared_ptr<const PjrtProgram> PjrtBooks::FindProgram(PjrtHandle executable) {
  MutexLock lock(mutex_);
  const auto found = executables_.find(executable);
  return found == executables_.end() ? nullptr : found->second.program;
}

PjrtHandle PjrtBooks::ClientOf(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(buffer);
  return found == buffers_.end() ? nullptr : found->second.client;
}

PjrtBooks::Forgotten PjrtBooks::ExecutableDeleted(PjrtHandle executable) {
  Forgotten forgotten;
  std::vector<BufferId> code;
  {
    MutexLock lock(mutex_);
    const auto found = executables_.find(executable);
    if (found == executables_.end()) return forgotten;
    forgotten.executables_.emplace_back(executable, found->second);
    code = std::exchange(found->second.code, {});
  }
  Free(code, &forgotten);
  return forgotten;
}

PjrtBooks::Forgotten PjrtBooks::ExecutableDestroyed(PjrtHandle executable, bool* known) {
  Forgotten forgotten;
  *known = true;
  if (executable == nullptr) return forgotten;
  {
    MutexLock lock(mutex_);
    const auto found = executables_.find(executable);
    if (found == executables_.end()) {
      *known = false;
    } else {
      forgotten.executables_.emplace_back(executable, std::move(found->second));
      executables_.erase(found);
    }
  }
  if (!*known) {
    Foreign(executable);
    return forgotten;
  }
  Free(forgotten.executables_.front().second.code, &forgotten);
  return forgotten;
}

void PjrtBooks::HostMapped(const Caller& caller, PjrtHandle data, const PjrtMemory& memory) {
  const BufferId id = Record(caller, memory);
  BufferId stale;
  EnterOrEnd({id}, [&] {
    MutexLock lock(mutex_);
    stale = std::exchange(mapped_[data], id);
  });
  if (!stale.is_null()) profiler_.RecordFree(stale);
}

PjrtBooks::Forgotten PjrtBooks::HostUnmapped(PjrtHandle data) {
  Forgotten forgotten;
  BufferId ended;
  {
    MutexLock lock(mutex_);
    const auto found = mapped_.find(data);
    if (found == mapped_.end()) return forgotten;
    ended = found->second;
    forgotten.mapped_.emplace_back(data, ended);
    mapped_.erase(found);
  }
  if (!ended.is_null()) Free({ended}, &forgotten);
  return forgotten;
}

PjrtBooks::Forgotten PjrtBooks::ClientDestroyed(PjrtHandle client) {
  Forgotten forgotten;
  MutexLock lock(mutex_);
  const auto take = [client](auto& from, auto& to) {
    for (auto entry = from.begin(); entry != from.end();) {
      if (entry->second.client != client) {
        ++entry;
        continue;
      }
      to.emplace_back(entry->first, std::move(entry->second));
      entry = from.erase(entry);
    }
  };
  take(buffers_, forgotten.buffers_);
  take(executables_, forgotten.executables_);
  take(transfers_, forgotten.transfers_);
  return forgotten;
}

std::vector<PjrtBooks::Leftover> PjrtBooks::LeftoversIn(const Forgotten& forgotten) const {
  std::map<std::tuple<DeviceId, MemoryKind, int64_t, uintptr_t>, Leftover> rows;
  const auto add = [&](BufferId id, uintptr_t made_by) {
    const std::optional<LiveBuffer> live = profiler_.FindBuffer(id);
    if (!live.has_value() || live->attributes.kind == MemoryKind::kAlias) return;
    Leftover& row = rows[{live->attributes.device, live->attributes.kind, live->bytes, made_by}];
    row.attributes = live->attributes;
    row.bytes = live->bytes;
    row.made_by = made_by;
    ++row.count;
  };
  // Of buffers that share memory only one lists it: the one that came with it, if it is still there.
  std::map<uint64_t, uintptr_t> memory;
  for (const auto& [handle, buffer] : forgotten.buffers_) {
    if (!buffer.holds_memory()) continue;
    const auto [entry, is_new] = memory.emplace(buffer.memory.value(), buffer.made_by);
    if (buffer.alias.is_null()) entry->second = buffer.made_by;
  }
  for (const auto& [id, made_by] : memory) add(BufferId(id), made_by);
  for (const auto& [handle, executable] : forgotten.executables_) {
    for (const BufferId id : executable.code) add(id, executable.made_by);
  }
  for (const auto& [handle, transfer] : forgotten.transfers_) {
    for (const BufferId id : transfer.memory) add(id, transfer.made_by);
  }
  std::vector<Leftover> sorted;
  sorted.reserve(rows.size());
  for (const auto& [key, row] : rows) sorted.push_back(row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Leftover& a, const Leftover& b) { return a.count * a.bytes > b.count * b.bytes; });
  return sorted;
}

void PjrtBooks::PutBack(const Forgotten& forgotten) {
  // Handles first: a record without one would never end.
  {
    MutexLock lock(mutex_);
    for (const auto& [handle, buffer] : forgotten.buffers_) buffers_[handle] = buffer;
    for (const auto& [handle, executable] : forgotten.executables_) executables_[handle] = executable;
    for (const auto& [handle, transfer] : forgotten.transfers_) transfers_[handle] = transfer;
    for (const auto& [data, memory] : forgotten.mapped_) mapped_[data] = memory;
    for (const BufferId memory : forgotten.references_) Share(memory);
  }
  for (const FreedRecord& record : forgotten.records_) profiler_.RestoreRecord(record);
}

}  // namespace hbmprof::internal
