// The public face of ProfilerImpl, and what all profilers of a process share: what happens at a fork.

#include "hbmprof/profiler.h"

#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/capture/modules.h"
#include "src/core/profiler_impl.h"
#include "src/core/tags.h"

namespace hbmprof {
namespace {

using internal::Mutex;
using internal::MutexLock;
using internal::ProfilerImpl;

// All profilers of the process. Across a fork every lock of every profiler is held, so that the child finds each table
// whole; there it is emptied: device memory does not survive a fork.
class ForkGuard {
 public:
  static ForkGuard& Instance() {
    static auto* guard = new ForkGuard;  // never destroyed: the process may fork during static destruction
    return *guard;
  }
  void Add(ProfilerImpl* impl) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock hold(mutex_);
    impls_.push_back(impl);
  }
  void Remove(ProfilerImpl* impl) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock hold(mutex_);
    impls_.erase(std::remove(impls_.begin(), impls_.end(), impl), impls_.end());
  }

 private:
  ForkGuard() { pthread_atfork(&Prepare, &Parent, &Child); }
  static void Prepare() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ForkGuard& self = Instance();
    self.mutex_.Lock();
    internal::LockModules();
    internal::LockTags();
    for (ProfilerImpl* impl : self.impls_) impl->LockAll();
  }
  static void Parent() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ForkGuard& self = Instance();
    for (ProfilerImpl* impl : self.impls_) impl->UnlockAll();
    internal::UnlockTags();
    internal::UnlockModules();
    self.mutex_.Unlock();
  }
  static void Child() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ForkGuard& self = Instance();
    for (ProfilerImpl* impl : self.impls_) impl->ResetInChild();
    internal::UnlockTags();
    internal::UnlockModules();
    self.mutex_.Unlock();
  }

  Mutex mutex_;
  std::vector<ProfilerImpl*> impls_ ABSL_GUARDED_BY(mutex_);
};

// Before there are threads, so that none can be making it when the process forks. From then on a fork waits for what
// other threads are making for the first time: tags' and modules' tables.
[[gnu::constructor]] void GuardForks() { ForkGuard::Instance(); }

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kManaged:
      return "managed";
    case MemoryKind::kPinnedHost:
      return "pinned_host";
    case MemoryKind::kPool:
      return "pool";
    case MemoryKind::kVmm:
      return "vmm";
    case MemoryKind::kArray:
      return "array";
    case MemoryKind::kGraph:
      return "graph";
    case MemoryKind::kExecutable:
      return "executable";
    case MemoryKind::kExternal:
      return "external";
    case MemoryKind::kAlias:
      return "alias";
  }
  return "unknown";
}

std::string_view MemorySpaceName(MemorySpace space) {
  switch (space) {
    case MemorySpace::kDevice:
      return "device";
    case MemorySpace::kManaged:
      return "managed";
    case MemorySpace::kPinnedHost:
      return "pinned_host";
  }
  return "unknown";
}

Profiler::Profiler(const Options& options) : enabled_(options.enabled), impl_(std::make_unique<ProfilerImpl>(options)) {
  ForkGuard::Instance().Add(impl_.get());
}

Profiler::~Profiler() { ForkGuard::Instance().Remove(impl_.get()); }

DeviceId Profiler::Device(std::string_view name) { return DeviceId(impl_->devices().NumberOf(name)); }
AllocatorId Profiler::Allocator(std::string_view name) { return AllocatorId(impl_->allocators().NumberOf(name)); }

void Profiler::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  impl_->SetDeviceProbe(device, std::move(probe), owner);
}
void Profiler::RemoveDeviceProbe(DeviceId device, const void* owner) { impl_->RemoveDeviceProbe(device, owner); }

// The functions that take no Caller are where the program enters: they must stay frames of their own.
[[gnu::noinline]] bool Profiler::Alloc(BufferId id, size_t bytes, const Attributes& attributes) {
  const Caller caller = Caller::OfThisFunction();
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
bool Profiler::AllocFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::noinline]] bool Profiler::RecordSegment(BufferId address, size_t bytes, const Attributes& attributes) {
  if (!enabled()) return false;
  const Caller caller = Caller::OfThisFunction();
  return impl_->RecordSegment(caller, address, bytes, attributes);
}
bool Profiler::RecordSegmentFrom(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) {
  return enabled() && impl_->RecordSegment(caller, address, bytes, attributes);
}
[[gnu::noinline]] bool Profiler::RecordBlock(BufferId address, size_t bytes, const Attributes& attributes) {
  if (!enabled()) return false;
  const Caller caller = Caller::OfThisFunction();
  return impl_->RecordBlock(caller, address, bytes, attributes);
}
bool Profiler::RecordBlockFrom(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) {
  return enabled() && impl_->RecordBlock(caller, address, bytes, attributes);
}

FreedRecord Profiler::Free(BufferId id) { return impl_->RecordFree(id); }
FreedRecord Profiler::RecordBlockFree(BufferId address) {
  return enabled() ? impl_->RecordBlockFree(address) : FreedRecord();
}
FreedRecord Profiler::PrepareRecordFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
  return enabled() ? impl_->PrepareRecord(caller, id, bytes, attributes) : FreedRecord();
}
void Profiler::RestoreRecord(const FreedRecord& record) { impl_->RestoreRecord(record); }
void Profiler::SetCounter(std::string_view name, int64_t value) { impl_->counters().Set(name, value); }
std::optional<LiveBuffer> Profiler::FindBuffer(BufferId id) const { return impl_->FindBuffer(id); }
DeviceStats Profiler::Stats(DeviceId device, MemorySpace space) const { return impl_->Stats(device, space); }
TrackerStats Profiler::GetTrackerStats() const { return impl_->GetTrackerStats(); }
Snapshot Profiler::TakeSnapshot() const { return impl_->TakeSnapshot(); }
void Profiler::ResetPeak(DeviceId device) { impl_->ResetPeak(device); }
void Profiler::RecordDropped(size_t bytes) {
  if (enabled()) impl_->Drop(bytes);
}
void Profiler::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  impl_->DropDevice(device, survivor, std::move(kept));
}

}  // namespace hbmprof
