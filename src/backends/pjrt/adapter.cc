// Order of events: a record is made before its handle is added to the tables, and it ends after its handle was removed.
// The mutex is not held while a record is made or ended, because that captures a call stack or changes the ledger.
#include "src/backends/pjrt/adapter.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "hbmprof/tag.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

// One sequence for all plugins, because they share a profiler.
std::atomic<uint64_t> next_record{1};

}  // namespace

BufferId PjrtRecords::Record(const Caller& caller, const PjrtMemory& memory) {
  const BufferId id = BufferId::Handle(NameSpace::kPjrtBuffer, next_record.fetch_add(1, std::memory_order_relaxed));
  const ScopedTag space(memory.space.empty() ? "" : "memory", memory.space);
  const ScopedTag shape(memory.shape.empty() ? "" : "shape", memory.shape);
  return profiler_.RecordAllocFrom(caller, id, memory.bytes, memory.attributes) ? id : BufferId();
}

template <typename Enter>
void PjrtRecords::InsertOrEnd(absl::Span<const BufferId> ids, const Enter& enter) {
  if (TryRun(enter)) return;
  for (const BufferId id : ids) {
    if (!id.is_null()) profiler_.RecordFree(id);
  }
  throw std::bad_alloc();
}

std::vector<BufferId> PjrtRecords::RecordAll(const Caller& caller, absl::Span<const PjrtMemory> pieces) {
  std::vector<BufferId> ids(pieces.size());
  InsertOrEnd(ids, [&] {
    for (size_t i = 0; i < pieces.size(); ++i) ids[i] = Record(caller, pieces[i]);
  });
  return ids;
}

void PjrtRecords::Insert(PjrtHandle handle, const Buffer& buffer) {
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
    // The table has an older handle with this value, because its destruction was not seen.
    if (entry->second.holds_memory() && DropHolder(entry->second.memory)) ended.push_back(entry->second.memory);
    if (!entry->second.alias.is_null()) ended.push_back(entry->second.alias);
    entry->second = buffer;
  }
  Free(ended);
}

bool PjrtRecords::DropHolder(BufferId memory) {
  const auto more = more_holders_.find(memory.value());
  if (more == more_holders_.end()) return true;
  if (--more->second == 0) more_holders_.erase(more);
  return false;
}

int PjrtRecords::Free(absl::Span<const BufferId> ids) {
  int ended = 0;
  for (const BufferId id : ids) {
    if (!id.is_null() && profiler_.RecordFree(id).has_value()) ++ended;
  }
  return ended;
}

void PjrtRecords::RecordForeignFree(PjrtHandle handle) {
  profiler_.RecordFree(BufferId::Handle(NameSpace::kPjrtUnknown, reinterpret_cast<uintptr_t>(handle)));
}

void PjrtRecords::Created(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory) {
  if (buffer == nullptr) return;
  Buffer made;
  made.client = client;
  made.memory = Record(caller, memory);
  made.made_by = caller.pc;
  InsertOrEnd({made.memory}, [&] { Insert(buffer, made); });
}

void PjrtRecords::CreatedAlias(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory,
                               PjrtHandle source) {
  if (buffer == nullptr) return;
  PjrtMemory view = memory;
  view.attributes.kind = MemoryKind::kAlias;
  Buffer made;
  made.client = client;
  made.alias = Record(caller, view);
  made.made_by = caller.pc;
  InsertOrEnd({made.alias}, [&] {
    Insert(buffer, made);
    if (source == nullptr) return;
    MutexLock lock(mutex_);
    const auto found = buffers_.find(source);
    const auto entry = buffers_.find(buffer);
    if (found == buffers_.end() || entry == buffers_.end() || !found->second.holds_memory()) return;
    if (!TryRun([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { AddHolder(found->second.memory); })) {
      buffers_.erase(entry);
      throw std::bad_alloc();
    }
    entry->second.memory = found->second.memory;
  });
}

void PjrtRecords::AwaitsFulfilment(PjrtHandle callback, PjrtHandle buffer) {
  if (callback == nullptr) return;
  MutexLock lock(mutex_);
  const auto alias = buffers_.find(buffer);
  if (alias != buffers_.end()) awaiting_[callback] = {buffer, alias->second.alias};
}

void PjrtRecords::Fulfilled(PjrtHandle callback, PjrtHandle source) {
  MutexLock lock(mutex_);
  const auto ended = awaiting_.extract(callback);
  if (ended.empty()) return;
  const Awaiting& waiting = ended.mapped();
  const auto alias = buffers_.find(waiting.buffer);
  const auto found = buffers_.find(source);
  if (alias == buffers_.end() || found == buffers_.end() || !found->second.holds_memory()) return;
  if (alias->second.alias.value() != waiting.alias.value()) return;  // a later buffer with the same handle
  if (!alias->second.memory.is_null() || alias->second.deleted) return;
  AddHolder(found->second.memory);
  alias->second.memory = found->second.memory;
}

bool PjrtRecords::Moved(PjrtHandle source, PjrtHandle buffer) {
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
  InsertOrEnd({made.memory, made.alias}, [&] { Insert(buffer, made); });
  return true;
}

void PjrtRecords::TransferCreated(const Caller& caller, PjrtHandle client, PjrtHandle manager,
                                  const std::vector<PjrtMemory>& memory) {
  if (manager == nullptr) return;
  Transfer transfer;
  transfer.client = client;
  transfer.made_by = caller.pc;
  transfer.memory = RecordAll(caller, memory);
  InsertOrEnd(transfer.memory, [&] {
    MutexLock lock(mutex_);
    std::swap(transfers_[manager], transfer);
  });
  // The memory of an older transfer with this handle, whose destruction was not seen.
  Free(transfer.memory);
}

bool PjrtRecords::TransferRetrieved(PjrtHandle manager, int index, PjrtHandle buffer) {
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
  InsertOrEnd({made.memory}, [&] { Insert(buffer, made); });
  return true;
}

int PjrtRecords::TransferDestroyed(PjrtHandle manager) {
  std::unordered_map<PjrtHandle, Transfer>::node_type ended;
  {
    MutexLock lock(mutex_);
    ended = transfers_.extract(manager);
  }
  return ended.empty() ? 0 : Free(ended.mapped().memory);
}

int PjrtRecords::Deleted(PjrtHandle buffer) {
  BufferId ended;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end() || found->second.deleted) return 0;
    found->second.deleted = true;
    if (found->second.memory.is_null() || found->second.holds_memory()) return 0;
    if (DropHolder(found->second.memory)) ended = found->second.memory;
  }
  return Free({ended});
}

bool PjrtRecords::IsHolder(PjrtHandle buffer) const {
  const auto found = buffers_.find(buffer);
  return found != buffers_.end() && !found->second.deleted && !found->second.memory.is_null();
}

bool PjrtRecords::IsFailed(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(buffer);
  return found != buffers_.end() && found->second.deleted && found->second.memory.is_null();
}

bool PjrtRecords::Holds(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  return IsHolder(buffer);
}

void PjrtRecords::KeepHolders(Handles& buffers) {
  MutexLock lock(mutex_);
  const auto holds = [&](PjrtHandle handle) ABSL_NO_THREAD_SAFETY_ANALYSIS { return IsHolder(handle); };
  buffers.erase(std::remove_if(buffers.begin(), buffers.end(), [&](PjrtHandle handle) { return !holds(handle); }),
                buffers.end());
}

int PjrtRecords::Destroyed(PjrtHandle buffer, bool* known) {
  *known = true;
  if (buffer == nullptr) return 0;
  absl::InlinedVector<BufferId, 2> ended;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) {
      *known = false;
    } else {
      const Buffer& entry = found->second;
      if (entry.holds_memory() && DropHolder(entry.memory)) ended.push_back(entry.memory);
      if (!entry.alias.is_null()) ended.push_back(entry.alias);
      Buffers::node_type node = buffers_.extract(found);
      if (spare_.size() < kMaxSpareNodes) spare_.push_back(std::move(node));
    }
  }
  if (!*known) RecordForeignFree(buffer);
  return Free(ended);
}

void PjrtRecords::ReferenceAdded(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found != buffers_.end() && !found->second.deleted) ++found->second.external_references;
}

void PjrtRecords::ReferenceDropped(PjrtHandle buffer) {
  BufferId ended;
  {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end() || found->second.external_references == 0) return;
    Buffer& entry = found->second;
    if (--entry.external_references > 0 || !entry.deleted || entry.memory.is_null()) return;
    if (DropHolder(entry.memory)) ended = entry.memory;
  }
  Free({ended});
}

void PjrtRecords::Loaded(const Caller& caller, PjrtHandle executable, std::shared_ptr<const PjrtProgram> program) {
  if (executable == nullptr) return;
  Executable loaded;
  loaded.client = program->client;
  loaded.made_by = caller.pc;
  {
    const ScopedTag name("executable", program->name);
    const auto key = [](const char* name, const std::optional<int64_t>& bytes) {
      return bytes.has_value() ? name : "";
    };
    const ScopedTag temp(key("temp_bytes", program->temp_bytes), std::to_string(program->temp_bytes.value_or(0)));
    const ScopedTag peak(key("peak_bytes", program->peak_bytes), std::to_string(program->peak_bytes.value_or(0)));
    std::vector<PjrtMemory> code(program->devices.size());
    for (size_t i = 0; i < code.size(); ++i) {
      code[i].bytes = static_cast<size_t>(program->code_bytes.value_or(0));
      code[i].attributes.kind = MemoryKind::kExecutable;
      code[i].attributes.device = program->devices[i];
    }
    loaded.code = RecordAll(caller, code);
  }
  loaded.program = std::move(program);
  InsertOrEnd(loaded.code, [&] {
    MutexLock lock(mutex_);
    std::swap(executables_[executable], loaded);
  });
  Free(loaded.code);
}

std::shared_ptr<const PjrtProgram> PjrtRecords::FindProgram(PjrtHandle executable) {
  MutexLock lock(mutex_);
  const auto found = executables_.find(executable);
  return found == executables_.end() ? nullptr : found->second.program;
}

PjrtHandle PjrtRecords::ClientOf(PjrtHandle buffer) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(buffer);
  return found == buffers_.end() ? nullptr : found->second.client;
}

int PjrtRecords::ExecutableDeleted(PjrtHandle executable) {
  std::vector<BufferId> code;
  {
    MutexLock lock(mutex_);
    const auto found = executables_.find(executable);
    if (found == executables_.end()) return 0;
    code = std::exchange(found->second.code, {});
  }
  return Free(code);
}

int PjrtRecords::ExecutableDestroyed(PjrtHandle executable, bool* known) {
  std::unordered_map<PjrtHandle, Executable>::node_type ended;
  {
    MutexLock lock(mutex_);
    ended = executables_.extract(executable);
  }
  *known = executable == nullptr || !ended.empty();
  if (!*known) RecordForeignFree(executable);
  return ended.empty() ? 0 : Free(ended.mapped().code);
}

void PjrtRecords::HostMapped(const Caller& caller, PjrtHandle data, const PjrtMemory& memory) {
  const BufferId id = Record(caller, memory);
  BufferId stale;
  InsertOrEnd({id}, [&] {
    MutexLock lock(mutex_);
    stale = std::exchange(mapped_[data], id);
  });
  if (!stale.is_null()) profiler_.RecordFree(stale);
}

int PjrtRecords::HostUnmapped(PjrtHandle data) {
  std::unordered_map<PjrtHandle, BufferId>::node_type ended;
  {
    MutexLock lock(mutex_);
    ended = mapped_.extract(data);
  }
  return ended.empty() ? 0 : Free({ended.mapped()});
}

std::vector<PjrtRecords::Leak> PjrtRecords::ClientDestroyed(PjrtHandle client) {
  std::vector<Buffer> buffers;
  std::vector<Executable> executables;
  std::vector<Transfer> transfers;
  {
    MutexLock lock(mutex_);
    const auto take = [client](auto& from, auto& to) {
      for (auto entry = from.begin(); entry != from.end();) {
        if (entry->second.client != client) {
          ++entry;
          continue;
        }
        to.push_back(std::move(entry->second));
        entry = from.erase(entry);
      }
    };
    take(buffers_, buffers);
    take(executables_, executables);
    take(transfers_, transfers);
  }
  std::map<std::tuple<DeviceId, MemoryKind, int64_t, uintptr_t>, Leak> rows;
  const auto add = [&](BufferId id, uintptr_t made_by) {
    const std::optional<LiveBuffer> live = profiler_.FindBuffer(id);
    if (!live.has_value() || live->attributes.kind == MemoryKind::kAlias) return;
    Leak& row = rows[{live->attributes.device, live->attributes.kind, live->bytes, made_by}];
    row.attributes = live->attributes;
    row.bytes = live->bytes;
    row.made_by = made_by;
    ++row.count;
  };
  // Memory that several buffers share is listed once: by the buffer that it was created for, if that buffer is among
  // them.
  std::map<uint64_t, uintptr_t> memory;
  for (const Buffer& buffer : buffers) {
    if (!buffer.holds_memory()) continue;
    const auto [entry, is_new] = memory.emplace(buffer.memory.value(), buffer.made_by);
    if (buffer.alias.is_null()) entry->second = buffer.made_by;
  }
  for (const auto& [id, made_by] : memory) add(BufferId(id), made_by);
  for (const Executable& executable : executables) {
    for (const BufferId id : executable.code) add(id, executable.made_by);
  }
  for (const Transfer& transfer : transfers) {
    for (const BufferId id : transfer.memory) add(id, transfer.made_by);
  }
  std::vector<Leak> sorted;
  sorted.reserve(rows.size());
  for (const auto& [key, row] : rows) sorted.push_back(row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Leak& a, const Leak& b) { return a.count * a.bytes > b.count * b.bytes; });
  return sorted;
}

}  // namespace hbmprof::internal
