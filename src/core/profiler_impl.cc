#include "src/core/profiler_impl.h"

#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <map>
#include <new>
#include <unordered_map>
#include <utility>

#include "src/base/background_thread.h"
#include "src/base/completes.h"
#include "src/base/cut_text.h"
#include "src/base/pages.h"
#include "src/base/saturating.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/capture/given_stack.h"
#include "src/capture/modules.h"
#include "src/capture/python/named_frames.h"
#include "src/capture/stack_memory.h"
#include "src/core/option_limits.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {
namespace {

// With a small limit, each event changes the common count of live records, so that the limit is exact. With a larger
// limit, each shard adds up several records first, at most 64.
int FlushEvery(int64_t max_live) { return static_cast<int>(std::clamp<int64_t>(max_live / 65536, 1, 64)); }

uint64_t DriverProbeBit(DeviceId device) { return uint64_t{1} << static_cast<unsigned>(device) % kMaxDevices; }

// The key of a native stack whose evaluation frames are replaced by the Python functions with this digest. The address
// of the path is part of it, because merging also depends on the sizes of the native frames. Paths are never freed.
SiteCache::Key MergedStackKey(const Path& path, uint64_t digest, const SiteWords& words) {
  const uint64_t other_digest = MultiplyFold(digest ^ reinterpret_cast<uintptr_t>(&path), kHashSeed2);
  return {{path.hash.low ^ digest, path.hash.high ^ other_digest}, words};
}

// Makes a table anew. Its destructor reads only what is right at every instant of the parent's other threads (fork.h).
template <typename Table, typename... Arguments>
void Remake(Table& table, Arguments&&... arguments) {
  table.~Table();
  new (&table) Table(std::forward<Arguments>(arguments)...);
}

// Takes the thread out of the tracker during its life, because it runs the program's code. It stays inside while it
// holds a Mutex, which that code could need.
class OutsideTracker {
 public:
  OutsideTracker() : was_inside_(thread_state.inside) {
    if (fork_state.mutexes == 0) ReentryGuard::Leave();
  }
  ~OutsideTracker() {
    if (was_inside_) ReentryGuard::Enter();
  }
  OutsideTracker(const OutsideTracker&) = delete;
  OutsideTracker& operator=(const OutsideTracker&) = delete;

 private:
  const bool was_inside_;
};

__thread ProbeLimit* limit_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;

constexpr int64_t kSecond = 1'000'000'000;

int64_t MonotonicNanos() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// A question to a probe that another thread asks. That thread may end after the one that waits for the answer.
struct Question {
  std::function<DeviceProbe()> call;
  void* context;
  DeviceProbe answer;
  sem_t answered;
};

void* Answer(void* argument) {
  const std::unique_ptr<std::shared_ptr<Question>> own(static_cast<std::shared_ptr<Question>*>(argument));
  Question& question = **own;
  const ReentryGuard guard;  // as in the thread that waits
  if (question.context != nullptr) driver_context.load()->set(question.context);
  if (!Completes([&] { question.answer = question.call(); })) question.answer = {};
  sem_post(&question.answered);
  return nullptr;
}

// Whether the stack of the event that this thread is recording is truncated, and not counted yet. Plain data in the
// static TLS block.
__thread bool has_truncated_stack __attribute__((tls_model("initial-exec"))) = false;

}  // namespace

NameTable::NameTable(std::string_view first, int capacity) : capacity_(capacity), names_(new Name[capacity]()) {
  Add(first);
}

int NameTable::Find(std::string_view name) const {
  for (int number = count_.load(std::memory_order_acquire) - 1; number >= 0; --number) {
    if (names_[number].text() == name) return number;
  }
  return -1;
}

void NameTable::Add(std::string_view name) {
  const int number = count_.load(std::memory_order_relaxed);
  names_[number].size = name.size();
  name.copy(names_[number].bytes, name.size());
  count_.store(number + 1, std::memory_order_release);
}

int NameTable::NumberOf(std::string_view name) {
  name = CutText(name, kMaxNameBytes);
  int number = Find(name);
  if (number == 0) first_is_requested_.store(true, std::memory_order_relaxed);
  if (number >= 0) return number;
  const ReentryGuard guard;
  // This thread may hold the lock. Its events are not recorded here either, so the number has no effect.
  if (!guard.entered()) return 0;
  SpinLockHolder hold(lock_);
  number = Find(name);
  if (number >= 0) return number;
  if (const int count = count_.load(std::memory_order_relaxed); count < capacity_) {
    Add(count + 1 == capacity_ ? "other" : name);
    return count;
  }
  return capacity_ - 1;
}

std::vector<std::string> NameTable::All() const {
  std::vector<std::string> all;
  for (int i = 0; i < count_.load(std::memory_order_acquire); ++i) all.emplace_back(names_[i].text());
  return all;
}

void CounterTable::Set(std::string_view name, int64_t value) {
  name = CutText(name, kMaxNameBytes);
  const ReentryGuard guard;
  if (!guard.entered()) return;  // this thread may hold the mutex
  MutexLock hold(mutex_);
  const auto found = values_.find(name);
  if (found != values_.end()) {
    found->second = value;
  } else if (values_.size() < kMaxCounters) {
    values_.emplace(name, value);
  }
}

std::vector<std::pair<std::string, int64_t>> CounterTable::All() const {
  MutexLock hold(mutex_);
  return {values_.begin(), values_.end()};
}

ProfilerImpl::ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled)
    : enabled(is_enabled),
      max_host_bytes(std::clamp<int64_t>(options.max_host_bytes, 1, kMaxHostBytesLimit)),
      max_depth_(std::clamp(options.max_stack_depth, 1, kMaxStackDepth)),
      max_live_(std::clamp<int64_t>(options.max_live_buffers, 1, kMaxLiveBuffersLimit)),
      capture_(options.unwinder),
      reads_python_(options.python && options.unwinder != Unwinder::kNone),
      tags_(LabelsOf(options.tags)),
      sites_(options.max_sites),
      ledger_(sites_, FlushEvery(options.max_live_buffers)),
      pools_(sites_, live_, ledger_),
      devices_("GPU:0", kMaxDevices),
      allocators_("", kMaxAllocators) {
  LookAtClock();  // the first profiler's begin is the start of all ages
  if (options.unwinder != Unwinder::kNone) WatchForPython();
}

ProfilerImpl::~ProfilerImpl() = default;

void ProfilerImpl::SetTag(std::string_view key, std::string_view value) {
  const ReentryGuard guard;
  if (!guard.entered()) return;  // this thread may hold the mutex
  MutexLock hold(tags_mutex_);
  std::map<std::string, std::string> tags(tags_.begin(), tags_.end());
  for (auto& [name, text] : LabelsOf({{std::string(key), std::string(value)}})) {
    if (text.empty()) {
      tags.erase(name);
    } else if (tags.size() < kMaxTagKeys || tags.count(name) != 0) {
      tags[name] = std::move(text);
    }
  }
  tags_.assign(tags.begin(), tags.end());
}

std::vector<std::pair<std::string, std::string>> ProfilerImpl::Tags() const {
  MutexLock hold(tags_mutex_);
  return tags_;
}

void ProfilerImpl::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner,
                                  bool is_replaceable) {
  ProbeSlot& slot = probes_[static_cast<size_t>(device) % kMaxDevices];
  auto prober = std::make_shared<DeviceProber>();
  prober->probe = std::move(probe);
  prober->owner = owner;
  {
    MutexLock hold(slot.mutex);
    if (is_replaceable && HasDriverProbe(device)) return;
    slot.prober.swap(prober);
    if (!is_replaceable && !HasDriverProbe(device)) {
      slot.set_aside = prober;
      driver_probes_.fetch_or(DriverProbeBit(device), std::memory_order_relaxed);
    }
  }
  AwaitCalls(prober);
}

void ProfilerImpl::RemoveDeviceProbe(DeviceId device, const void* owner, bool is_replaceable) {
  ProbeSlot& slot = probes_[static_cast<size_t>(device) % kMaxDevices];
  std::shared_ptr<DeviceProber> removed;
  {
    MutexLock hold(slot.mutex);
    const bool is_set_aside = is_replaceable && HasDriverProbe(device);
    std::shared_ptr<DeviceProber>& prober = is_set_aside ? slot.set_aside : slot.prober;
    if (prober == nullptr || prober->owner != owner) return;
    prober.swap(removed);
    if (!is_set_aside) driver_probes_.fetch_and(~DriverProbeBit(device), std::memory_order_relaxed);
  }
  AwaitCalls(removed);
}

void ProfilerImpl::AwaitCalls(const std::shared_ptr<DeviceProber>& prober) {
  // A thread that is inside a probe does not wait: it might wait for itself, or for a probe that waits for it.
  if (prober == nullptr || thread_state.probes != 0) return;
  for (Backoff backoff; prober->calls->load(std::memory_order_acquire) != 0;) backoff.Wait();
}

ProbeLimit::ProbeLimit(void* context) : context_(context), end_(MonotonicNanos() + 2 * kSecond) {
  if (limit_of_thread == nullptr) limit_of_thread = this;
}

ProbeLimit::~ProbeLimit() {
  if (limit_of_thread == this) limit_of_thread = nullptr;
}

DeviceProbe ProbeLimit::Ask(int device, std::function<DeviceProbe()> call) {
  const auto question = std::make_shared<Question>();
  question->call = std::move(call);
  question->context = context_;
  sem_init(&question->answered, 0, 0);
  auto argument = std::make_unique<std::shared_ptr<Question>>(question);
  const int64_t until = std::min(MonotonicNanos() + kSecond, end_);
  const timespec deadline = {until / kSecond, until % kSecond};
  if (StartBackgroundThread(&Answer, argument.get())) {
    static_cast<void>(argument.release());
    int error = 0;
    do error = sem_clockwait(&question->answered, CLOCK_MONOTONIC, &deadline) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == 0) return std::move(question->answer);
  }
  silent_devices_ |= uint64_t{1} << device;
  return {};
}

DeviceProbe ProfilerImpl::Probe(int device) const {
  if (thread_state.probes != 0) return {};
  ProbeSlot& slot = probes_[device];
  if (limit_of_thread != nullptr) {
    const auto has_probe = [&slot] {
      MutexLock hold(slot.mutex);
      return slot.prober != nullptr;
    };
    return has_probe() ? limit_of_thread->Ask(device, [this, device] { return Probe(device); }) : DeviceProbe{};
  }
  // Ends the call, also if the probe throws. After that, a waiting thread destroys the prober.
  struct Call {
    std::shared_ptr<DeviceProber> prober;
    std::shared_ptr<std::atomic<int>> calls;
    ~Call() {
      if (calls == nullptr) return;
      prober.reset();
      --thread_state.probes;
      calls->fetch_sub(1, std::memory_order_release);
    }
  } call;
  {
    MutexLock hold(slot.mutex);
    if (slot.prober == nullptr) return {};
    call.prober = slot.prober;
    call.calls = slot.prober->calls;
    call.calls->fetch_add(1, std::memory_order_relaxed);
    ++thread_state.probes;
  }
  if (!call.prober->probe) return {};
  try {
    const OutsideTracker outside;
    const DeviceProbe answer = call.prober->probe();
    // The answer is copied, so that what the probe allocated outside of the tracker is also freed there. A compiler may
    // leave out the copy of `return answer`.
    const ReentryGuard guard;
    return DeviceProbe(answer);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return {};  // the program's own exception must not end a thread of this library
  }
}

uint64_t ProfilerImpl::ClampSlow(uint64_t packed) {
  Attributes attributes = UnpackAttributes(packed);
  if (static_cast<int>(attributes.device) >= kMaxDevices) attributes.device = DeviceId{kMaxDevices - 1};
  if (static_cast<int>(attributes.allocator) >= kMaxAllocators) attributes.allocator = AllocatorId{kMaxAllocators - 1};
  if (static_cast<int>(attributes.kind) >= kMemoryKindCount) attributes.kind = MemoryKind::kDevice;
  return PackAttributes(attributes);
}

[[gnu::noinline]] bool ProfilerImpl::RecordAllocUncommon(Caller caller, BufferId id, size_t bytes,
                                                         uint64_t attributes) noexcept {
  ReentryGuard guard;
  if (!Admits(guard) || id.is_null()) return false;
  return IsBuffer(id) ? Allocate(caller, id, bytes, attributes) : Drop(bytes);
}

[[gnu::noinline]] bool ProfilerImpl::AllocateUncommon(Caller caller, BufferId id, size_t bytes,
                                                      uint64_t attributes) noexcept {
  const bool recorded = Allocate(caller, id, bytes, attributes);
  ReentryGuard::Leave();
  return recorded;
}

[[gnu::noinline]] bool ProfilerImpl::AllocateAtNewSite(Caller caller, const Path* path, BufferId id,
                                                       SiteWords words) noexcept {
  const bool has_names = MayHaveNamedFrames();
  const SiteId site = has_names ? SiteWithNames(caller, words) : SiteOfSlow(caller, path, words);
  CountTruncated();
  const auto bytes = static_cast<int64_t>(words.block_bytes());
  return site == kNoSite ? EnterUncommon(id, site, bytes) : EnterNew(live_.Prefetch(id.value()), id, site, bytes);
}

// Flattened, because an event whose bucket of the live table has an overflow bucket takes this way.
[[gnu::noinline, gnu::flatten]] bool ProfilerImpl::EnterUncommon(BufferId id, SiteId site, int64_t bytes) noexcept {
  const bool recorded = Enter(id, site, bytes);
  ReentryGuard::Leave();
  return recorded;
}

// Flattened, because every allocation takes this way while the event log is on.
[[gnu::noinline, gnu::flatten]] bool ProfilerImpl::FinishAllocate(BufferId id, SiteId site, int64_t bytes) noexcept {
  const bool recorded = EnterLedger(id, site, bytes);
  ReentryGuard::Leave();
  return recorded;
}

[[gnu::noinline]] bool ProfilerImpl::ResizeAfterAllocate() noexcept {
  ledger_.CountRecords();
  Resize();
  ReentryGuard::Leave();
  return true;
}

bool ProfilerImpl::Allocate(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) {
  if (AreUncommon(attributes)) {
    attributes = ClampSlow(attributes);
    if (UnpackAttributes(attributes).kind == MemoryKind::kAlias) bytes = 0;
  }
  // The removal of a buffer whose free was not recorded may make space.
  if (!HasCapacity(bytes) && !(RemoveStaleRecord(id) && HasCapacity(bytes))) return Drop(bytes);
  const auto size = static_cast<int64_t>(bytes);
  const SiteId site = SiteOf(caller, size, attributes);
  CountTruncated();
  return Enter(id, site, size);
}

bool ProfilerImpl::Enter(BufferId id, SiteId site, int64_t bytes) {
  if (site == kNoSite) {
    RemoveStaleRecord(id);
    return Drop(static_cast<uint64_t>(bytes));
  }
  LiveRecord replaced;
  const LiveTable::Inserted inserted = live_.Insert(id.value(), {site, PresentGeneration(), bytes}, &replaced);
  if (inserted == LiveTable::Inserted::kNoMemory) return Drop(static_cast<uint64_t>(bytes));
  if (inserted == LiveTable::Inserted::kReplaced) EnterReplaced(id, replaced);
  return EnterLedger(id, site, bytes);
}

bool ProfilerImpl::EnterLedger(BufferId id, SiteId site, int64_t bytes) {
  const Ledger::Entered entered = ledger_.Enter(Ledger::Event::kAlloc, id.value(), site, bytes);
  if (entered == Ledger::kNotEntered) return DropEntered(id, {site, 0, bytes});
  Resize(entered);
  return true;
}

[[gnu::noinline]] FreedRecord ProfilerImpl::RecordFreeInside(BufferId id) noexcept {
  ReentryGuard guard;
  return Admits(guard) ? Free(id) : FreedRecord();
}

[[gnu::noinline]] FreedRecord ProfilerImpl::FreeUncommon(BufferId id) noexcept {
  const FreedRecord freed = Free(id);
  ReentryGuard::Leave();
  return freed;
}

// Flattened, because every free takes this way while the event log is on.
[[gnu::noinline, gnu::flatten]] FreedRecord ProfilerImpl::FinishFree(BufferId id, uint64_t packed_record,
                                                                     Generation birth,
                                                                     Ledger::Entered entered) noexcept {
  const LiveRecord record = LiveTable::Unpack(packed_record, birth);
  const int octave = OctaveNow(birth);
  if (entered == Ledger::kNotEntered) {
    entered = EnterFree(id, record, octave);
  } else {
    ledger_.CountAge(Ledger::Event::kFree, record.site, octave);
    if (entered == Ledger::kEnteredAndCounted) ledger_.CountRecords();
  }
  Resize(entered);
  ReentryGuard::Leave();
  return Freed(id, record, octave);
}

bool ProfilerImpl::Drop(uint64_t bytes) {
  dropped_records_.fetch_add(1, std::memory_order_relaxed);
  const auto more = static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX));
  int64_t total = dropped_bytes_.load(std::memory_order_relaxed);
  while (!dropped_bytes_.compare_exchange_weak(total, SaturatingSum(total, more), std::memory_order_relaxed)) {
  }
  return false;
}

void ProfilerImpl::CountTruncated() {
  if (!has_truncated_stack) return;
  has_truncated_stack = false;
  truncated_stacks_.fetch_add(1, std::memory_order_relaxed);
}

SiteId ProfilerImpl::SiteOf(const Caller& caller, SiteWords words) {
  const Caller& start = StartOfStack(caller);
  const bool has_names = MayHaveNamedFrames();
  return has_names ? SiteWithNames(start, words) : SiteOfNativeStack(start, words);
}

SiteId ProfilerImpl::SiteOfNativeStack(const Caller& caller, SiteWords words) {
  const Path* path = capture_.FindPath(caller, max_depth_);
  // Truncated paths are not searched for, so that CachedSiteOf needs no other test for them.
  if (path != nullptr && !path->truncated) {
    const SiteId known = site_cache_.Find(SiteCache::Key(path->hash, words));
    if (known != kNoSite) return known;
  }
  return SiteOfSlow(caller, path, words);
}

[[gnu::noinline]] SiteId ProfilerImpl::SiteWithNames(const Caller& caller, SiteWords words) {
  if (GivenFrames(caller) != 0 || !capture_.is_on()) return SiteOfNativeStack(caller, words);
  uint64_t digest = reads_python_ ? DigestPythonFrames(caller.sp, max_depth_) : 0;
  const Traceback* const traceback = digest == 0 ? current_traceback : nullptr;
  if (traceback != nullptr) digest = traceback->hash;
  if (digest == 0) return SiteOfNativeStack(caller, words);
  const Path* path = capture_.FindPath(caller, max_depth_);
  if (path != nullptr && !path->truncated) {
    const SiteId known = site_cache_.Find(MergedStackKey(*path, digest, words));
    if (known != kNoSite) return known;
  }
  return SiteOfNamedStack(caller, path, words, digest, traceback);
}

[[gnu::noinline]] SiteId ProfilerImpl::SiteOfNamedStack(const Caller& caller, const Path* path, SiteWords words,
                                                        uint64_t digest, const Traceback* traceback) {
  PythonWorkspace* workspace = AcquirePythonWorkspace();
  if (workspace == nullptr) return SiteOfSlow(caller, path, words);
  const CapturedStack native =
      path != nullptr ? CapturedStack(*path) : capture_.CaptureAfresh(caller, NativeFramesOf(workspace), max_depth_);
  const CapturedStack merged = traceback != nullptr ? AppendTraceback(native, *traceback, max_depth_, workspace)
                                                    : MergePythonFrames(caller, native, max_depth_, workspace);
  const SiteId site = SiteOfStack(merged, words);
  ReleasePythonWorkspace(workspace);
  // As in SiteOfStack, a truncated stack and a site with a rounded size are not cached.
  if (native.path != nullptr && !merged.truncated && site != kNoSite && sites_.At(site).words == words) {
    site_cache_.Store(MergedStackKey(*native.path, digest, words), site);
  }
  return site;
}

[[gnu::noinline]] SiteId ProfilerImpl::SiteOfSlow(const Caller& caller, const Path* path, SiteWords words) {
  if (path != nullptr) return SiteOfStack(CapturedStack(*path), words);
  const bool knows_python = HasPython();
  const SiteId site =
      max_depth_ > kFewFrames ? SiteOfDeepStack(caller, words) : SiteOfStackInFrame<kFewFrames>(caller, words);
  // If the program loads the interpreter after its start, the first walk through the interpreter's code finds it.
  return HasPython() && !knows_python ? SiteWithNames(caller, words) : site;
}

template <int kFrames>
[[gnu::noinline]] SiteId ProfilerImpl::SiteOfStackInFrame(const Caller& caller, SiteWords words) {
  uintptr_t buffer[kFrames];
  return SiteOfStack(capture_.CaptureAfresh(caller, buffer, max_depth_), words);
}

// Captures into a buffer of 4 KiB. If the thread's stack may be too small for it, pages are mapped for the buffer. If
// there is no memory for these pages, the captured stack is truncated to kFewFrames.
[[gnu::noinline]] SiteId ProfilerImpl::SiteOfDeepStack(const Caller& caller, SiteWords words) {
  constexpr size_t kBufferBytes = kMaxStackDepth * sizeof(uintptr_t);
  if (AvailableStackBytes() >= 4 * kBufferBytes) return SiteOfStackInFrame<kMaxStackDepth>(caller, words);
  auto* pages = static_cast<uintptr_t*>(MapPages(kBufferBytes));
  uintptr_t few[kFewFrames];
  const int depth = pages != nullptr ? max_depth_ : kFewFrames;
  const SiteId site = SiteOfStack(capture_.CaptureAfresh(caller, pages != nullptr ? pages : few, depth), words);
  UnmapPages(pages, kBufferBytes);
  return site;
}

SiteId ProfilerImpl::SiteOfStack(const CapturedStack& stack, SiteWords words) {
  if (stack.truncated) has_truncated_stack = true;
  const Hash128 hash = SiteTable::HashOf(stack);
  const SiteCache::Key key(hash, words);
  SiteId site = site_cache_.Find(key);
  if (site == kNoSite) {
    const StackRecord* record = sites_.InternStack(stack, hash);
    if (record == nullptr) return kNoSite;
    site = sites_.InternSite(words.WithStack(record));
    if (site == kNoSite || !ledger_.MakeCells(site)) return kNoSite;
    // A site with a rounded size is not cached: the site table decides when to round.
    if (!(sites_.At(site).words == words)) return site;
    site_cache_.Store(key, site);
  }
  return site;
}

[[gnu::noinline]] void ProfilerImpl::EnterReplaced(BufferId id, LiveRecord record) {
  replaced_records_.fetch_add(1, std::memory_order_relaxed);
  Resize(EnterFree(id, record, OctaveNow(record.birth)));
}

[[gnu::noinline]] bool ProfilerImpl::RemoveStaleRecord(BufferId id) {
  LiveRecord stale;
  if (!live_.Erase(id.value(), &stale)) return false;
  EnterReplaced(id, stale);
  return true;
}

[[gnu::noinline]] bool ProfilerImpl::DropEntered(BufferId id, const LiveRecord& record) {
  live_.EraseExactly(id.value(), record);
  return Drop(static_cast<uint64_t>(record.bytes));
}

Ledger::Entered ProfilerImpl::EnterFree(BufferId id, const LiveRecord& record, int octave) {
  if (!sites_.At(record.site).is_segment) {
    return ledger_.Enter(Ledger::Event::kFree, id.value(), record.site, record.bytes, octave);
  }
  TraceStep(EventStep::kSegmentErased);
  pools_.RemoveSegment(id.value(), octave);
  return Ledger::kEnteredAndCounted;
}

void ProfilerImpl::RestoreRecord(const FreedRecord& freed) {
  if (!freed) return;
  ReentryGuard guard;
  if (!Admits(guard)) return;
  TraceStep(EventStep::kRestoring);
  LiveRecord live;
  if (live_.Find(freed.id_.value(), &live) && LiveTable::Pack(live) == freed.record_) return;  // a second call
  const bool is_born = freed.age_ != kBornWhenRestored;
  LiveRecord record =
      LiveTable::Unpack(freed.record_, is_born ? static_cast<Generation>(freed.age_) : PresentGeneration());
  const int octave = is_born ? static_cast<int>(freed.age_ >> kOctaveShift) - 1 : -1;
  if (Pools::IsBlockId(freed.id_.value())) return RestoreBlock(freed.id_.value(), record, octave);
  if (sites_.At(record.site).is_segment) {
    if (RestoreSegment(freed.id_, record, octave)) return;
    // Another segment has its addresses now. The record is counted, but not as a segment.
    SiteKey key = sites_.Key(record.site);
    key.in_pool = false;
    record.site = sites_.InternSite(key);
  }
  // In a forked child, the ledger may not have the site of the parent's record yet.
  if (record.site == kNoSite || !ledger_.MakeCells(record.site)) {
    Drop(static_cast<uint64_t>(record.bytes));
    return;
  }
  LiveRecord replaced;
  const LiveTable::Inserted inserted = live_.Insert(freed.id_.value(), record, &replaced);
  if (inserted == LiveTable::Inserted::kNoMemory) {
    Drop(static_cast<uint64_t>(record.bytes));
    return;
  }
  if (inserted == LiveTable::Inserted::kReplaced) EnterReplaced(freed.id_, replaced);
  Resize(ledger_.Enter(Ledger::Event::kUndoFree, freed.id_.value(), record.site, record.bytes, octave));
}

bool ProfilerImpl::RestoreSegment(BufferId id, const LiveRecord& record, int octave) {
  const auto restore = [&] { return pools_.RestoreSegment(id.value(), record, octave); };
  Pools::Added added = restore();
  if (added == Pools::Added::kRefused && RemoveStaleRecord(id)) added = restore();
  if (added == Pools::Added::kNoMemory) Drop(static_cast<uint64_t>(record.bytes));
  Resize();
  return added != Pools::Added::kRefused;
}

void ProfilerImpl::RestoreBlock(uint64_t id, const LiveRecord& record, int octave) {
  const Site& site = sites_.At(record.site);
  bool replaced = false;
  Pools::Added added;
  if (site.is_segment) {
    added = pools_.RestoreSegment(id, record, octave);
  } else {
    do {
      const Pools::Position position = pools_.PositionOfBlock(Pools::AddressOf(id), record.bytes);
      // If the block's segment was removed meanwhile, the block would have been removed with it, so it is not restored.
      if (site.is_block && (position.id() != id || !position.in_pool)) return;
      added = pools_.AddBlock(position, record, Ledger::Event::kUndoFree, octave, &replaced);
    } while (added == Pools::Added::kMoved);
  }
  if (replaced) replaced_records_.fetch_add(1, std::memory_order_relaxed);
  if (added != Pools::Added::kAdded) Drop(static_cast<uint64_t>(record.bytes));
  Resize();
}

FreedRecord ProfilerImpl::PrepareRecord(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
  FreedRecord prepared;
  ReentryGuard guard;
  if (!Admits(guard) || id.is_null()) return prepared;
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  if (!IsBuffer(id) || !HasCapacity(bytes)) {
    Drop(bytes);
    return prepared;
  }
  const auto size = static_cast<int64_t>(bytes);
  const SiteId site = SiteOf(caller, size, Clamp(attributes));
  CountTruncated();
  if (site == kNoSite || !ledger_.Enter(Ledger::Event::kAllocAndFree, id.value(), site, size)) {
    Drop(bytes);
    return prepared;
  }
  return Freed(id, LiveTable::Pack({site, 0, size}), kBornWhenRestored);
}

bool ProfilerImpl::RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) {
  ReentryGuard guard;
  const uint64_t start = address.value();
  if (!Admits(guard) || address.is_null()) return false;
  if (!IsBuffer(address)) return Drop(bytes);
  Attributes pool = attributes;
  pool.kind = MemoryKind::kPool;
  const auto size = static_cast<int64_t>(bytes);
  const std::optional<bool> made = pools_.MakeSegment(start, size, UnpackAttributes(Clamp(pool)).allocator);
  if (made.has_value()) return *made;
  if (!HasCapacity(bytes)) return Drop(bytes);
  Pools::Added added;
  do {
    const Pools::Position position = pools_.PositionOfSegment(start, size);
    if (position.in_pool) pool.device = position.device();
    const SiteId site = SiteOf(caller, size, Clamp(pool), /*in_pool=*/true);
    TraceStep(EventStep::kSegmentPlaced);
    added = site == kNoSite ? Pools::Added::kNoMemory : pools_.AddSegment(position, site, size);
  } while (added == Pools::Added::kMoved);
  CountTruncated();
  if (added == Pools::Added::kNoMemory) return Drop(bytes);
  Resize();
  return added == Pools::Added::kAdded;
}

[[gnu::noinline]] bool ProfilerImpl::RecordBlockInside(Caller caller, BufferId address, size_t bytes,
                                                       const Attributes& attributes) noexcept {
  ReentryGuard guard;
  if (!Admits(guard)) return false;
  const bool recorded = AddAnyBlock(caller, address.value(), bytes, attributes);
  CountTruncated();
  return recorded;
}

[[gnu::noinline]] FreedRecord ProfilerImpl::RecordBlockFreeInside(BufferId address) noexcept {
  ReentryGuard guard;
  return Admits(guard) ? FreeAnyBlock(address.value()) : FreedRecord();
}

[[gnu::noinline]] bool ProfilerImpl::AddBlockUncommon(Caller caller, uint64_t start, size_t bytes,
                                                      const Attributes& attributes) noexcept {
  const bool recorded = AddAnyBlock(caller, start, bytes, attributes);
  CountTruncated();
  ReentryGuard::Leave();
  return recorded;
}

[[gnu::noinline]] FreedRecord ProfilerImpl::FreeBlockUncommon(uint64_t start) noexcept {
  const FreedRecord freed = FreeAnyBlock(start);
  ReentryGuard::Leave();
  return freed;
}

[[gnu::noinline]] bool ProfilerImpl::AddAnyBlock(const Caller& caller, uint64_t start, size_t bytes,
                                                 const Attributes& attributes) {
  if (start == 0) return false;
  if (!Pools::IsBlockAddress(start)) return Drop(bytes);
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  // The removal of a block whose free was not recorded may make space.
  if (!HasCapacity(bytes) && !(RemoveStaleBlock(start) && HasCapacity(bytes))) return Drop(bytes);
  const auto size = static_cast<int64_t>(bytes);
  bool replaced = false;
  Pools::Added added;
  do {
    const Pools::Position position = pools_.PositionOfBlock(start, size);
    Attributes of_block = attributes;
    if (position.in_pool) of_block.device = position.device();
    // Only segments have the kind kPool, also where a segment is recorded around the block later.
    if (of_block.kind == MemoryKind::kPool || (position.in_pool && !IsForBlocks(of_block.kind))) {
      of_block.kind = MemoryKind::kDevice;
    }
    const uint64_t packed = Clamp(of_block);
    bool in_pool = position.in_pool;
    do {
      const SiteId site = SiteOf(caller, size, packed, in_pool);
      TraceStep(EventStep::kBlockPlaced);
      added = site == kNoSite
                  ? Pools::Added::kNoMemory
                  : pools_.AddBlock(position, {site, PresentGeneration(), size}, Ledger::Event::kAlloc, -1, &replaced);
      in_pool = false;
    } while (added == Pools::Added::kRefused);
  } while (added == Pools::Added::kMoved);
  if (replaced) replaced_records_.fetch_add(1, std::memory_order_relaxed);
  if (added == Pools::Added::kNoMemory) {
    RemoveStaleBlock(start);
    return Drop(static_cast<uint64_t>(size));
  }
  Resize();
  return true;
}

bool ProfilerImpl::RemoveStaleBlock(uint64_t address) {
  if (!pools_.RemoveBlock(address).has_value()) return false;
  replaced_records_.fetch_add(1, std::memory_order_relaxed);
  Resize();
  return true;
}

[[gnu::noinline]] FreedRecord ProfilerImpl::FreeAnyBlock(uint64_t start) {
  FreedRecord freed;
  if (start == 0) return freed;
  const std::optional<Pools::Block> removed = Pools::IsBlockAddress(start) ? pools_.RemoveBlock(start) : std::nullopt;
  if (!removed.has_value()) {
    foreign_frees_.fetch_add(1, std::memory_order_relaxed);
    return freed;
  }
  Resize();
  return Freed(BufferId(removed->id), removed->record, removed->octave);
}

bool ProfilerImpl::RecordResize(BufferId id, size_t bytes) {
  ReentryGuard guard;
  return Admits(guard) && IsBuffer(id) && bytes <= LiveTable::kMaxBytes &&
         pools_.Resize(id.value(), static_cast<int64_t>(bytes));
}

bool ProfilerImpl::RecordBlockResize(BufferId address, size_t bytes) {
  ReentryGuard guard;
  return Admits(guard) && !address.is_null() && Pools::IsBlockAddress(address.value()) &&
         bytes <= LiveTable::kMaxBytes && pools_.ResizeBlock(address.value(), static_cast<int64_t>(bytes));
}

bool ProfilerImpl::SplitSegment(BufferId address, size_t bytes) {
  ReentryGuard guard;
  if (!Admits(guard) || bytes > LiveTable::kMaxBytes ||
      !pools_.SplitSegment(address.value(), address.value() + bytes)) {
    return false;
  }
  Resize();
  return true;
}

bool ProfilerImpl::MergeSegments(BufferId first, BufferId second) {
  ReentryGuard guard;
  if (!Admits(guard) || !pools_.MergeSegments(first.value(), second.value())) return false;
  Resize();
  return true;
}

SiteId ProfilerImpl::SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space) {
  const MemoryKind kind = space == MemorySpace::kManaged      ? MemoryKind::kManaged
                          : space == MemorySpace::kPinnedHost ? MemoryKind::kPinnedHost
                                                              : MemoryKind::kDevice;
  const SiteId site = SiteOf(caller, 0, Clamp({device, kind}));
  CountTruncated();
  return site;
}

std::optional<LiveBuffer> ProfilerImpl::FindBuffer(BufferId id) const {
  ReentryGuard guard;
  LiveRecord record;
  if (!IsBuffer(id) || !live_.Find(id.value(), &record)) return std::nullopt;
  return LiveBuffer{record.bytes, sites_.Key(record.site).attributes};
}

std::optional<FoundBuffer> ProfilerImpl::FindBufferAt(BufferId address) const {
  const ReentryGuard guard;
  if (address.is_null() || address.is_handle() || !guard.entered()) return std::nullopt;
  uint64_t found_id = 0;
  LiveRecord found;
  live_.ForEach([&](uint64_t id, const LiveRecord& record) {
    const uint64_t start = Pools::AddressOf(id);
    if (BufferId(start).is_handle() || address.value() - start >= static_cast<uint64_t>(record.bytes)) return;
    // Of two buffers with equal addresses, the inner one has the larger id (Pools::IsBlockId).
    const bool is_inner = record.bytes < found.bytes || (record.bytes == found.bytes && id > found_id);
    if (found_id != 0 && !is_inner) return;
    found_id = id;
    found = record;
  });
  if (found_id == 0) return std::nullopt;
  const SiteKey key = sites_.Key(found.site);
  FoundBuffer buffer;
  buffer.address = Pools::AddressOf(found_id);
  buffer.bytes = found.bytes;
  buffer.attributes = key.attributes;
  buffer.tags = WithProcessTags(TagsOf(key.tags), Tags());
  buffer.stack = {sites_.PcsOf(*key.stack), key.stack->truncated};
  return buffer;
}

std::optional<LiveBuffer> ProfilerImpl::FindBlock(BufferId address) {
  ReentryGuard guard;
  if (address.is_null() || !Pools::IsBlockAddress(address.value())) return std::nullopt;
  const std::optional<Pools::Block> found = pools_.LookUpBlock(address.value());
  if (!found.has_value()) return std::nullopt;
  return LiveBuffer{found->record.bytes, sites_.Key(found->record.site).attributes};
}

bool ProfilerImpl::Refine(const Caller& caller, BufferId id, AllocatorId allocator) {
  ReentryGuard guard;
  LiveRecord live;
  if (!Admits(guard) || !live_.Find(id.value(), &live)) return false;
  const SiteKey key = sites_.Key(live.site);
  Attributes attributes = key.attributes;
  if (attributes.kind == MemoryKind::kPool) return true;
  if (allocator != AllocatorId{}) attributes.allocator = allocator;
  const SiteId site = SiteOf(caller, live.bytes, Clamp(attributes), key.in_pool);
  CountTruncated();
  if (site == kNoSite || site == live.site) return true;
  for (const auto scope : {Ledger::Change::Scope::kOwnShard, Ledger::Change::Scope::kAllShards}) {
    Ledger::Change change(ledger_, scope);
    if (!change.is_usable() || !change.Prepare(live.site) || !change.Prepare(site)) continue;
    if (!live_.Replace(id.value(), live, {site, live.birth, live.bytes})) return false;
    change.Move(id.value(), live.site, site, live.bytes, live.bytes);
    break;
  }
  return true;
}

bool ProfilerImpl::Rename(BufferId id, BufferId new_id) {
  ReentryGuard guard;
  LiveRecord record;
  if (!Admits(guard) || !live_.Find(id.value(), &record)) return false;
  if (!live_.Rename(id.value(), record, new_id.value(), record)) return false;
  Ledger::Change change(ledger_, Ledger::Change::Scope::kOwnShard);
  if (change.is_usable()) change.Rename(id.value(), new_id.value(), record.site, record.bytes);
  return true;
}

void ProfilerImpl::EndBlocks(DeviceId device, AllocatorId allocator) {
  ReentryGuard guard;
  if (!Admits(guard)) return;
  pools_.EndBlocks(device, allocator);
  Resize();
}

std::optional<int64_t> ProfilerImpl::BlockBytes(DeviceId device, AllocatorId allocator) {
  ReentryGuard guard;
  if (!Admits(guard)) return std::nullopt;
  return pools_.BlockBytes(device, allocator);
}

DeviceStats ProfilerImpl::ToStats(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe) const {
  DeviceStats stats;
  stats.bytes_in_use = totals.bytes_in_use;
  stats.peak_bytes_in_use = totals.peak_bytes_in_use;
  stats.num_allocs = totals.num_allocs;
  stats.num_live = totals.num_live;
  stats.largest_alloc_size = totals.largest_alloc;
  stats.pool_bytes = totals.pool_bytes;
  stats.bytes_reserved = totals.pool_bytes - totals.block_bytes;
  if (space != MemorySpace::kDevice) return stats;
  stats.bytes_limit = probe.bytes_limit;
  stats.bytes_free = probe.bytes_free;
  stats.largest_free_block_bytes = probe.largest_free_block_bytes;
  stats.driver_bytes_in_use = probe.driver_bytes_in_use;
  stats.driver_peak_bytes_in_use = probe.driver_peak_bytes_in_use;
  stats.driver_scope = probe.driver_scope;
  stats.driver_cache_bytes = probe.driver_cache_bytes;
  stats.baseline = probe.baseline;
  if (probe.driver_bytes_in_use.has_value()) {
    stats.unaccounted =
        *probe.driver_bytes_in_use - totals.bytes_in_use - std::max<int64_t>(probe.driver_cache_bytes.value_or(0), 0);
  }
  return stats;
}

DeviceStats ProfilerImpl::Stats(DeviceId device, MemorySpace space) const {
  if (static_cast<int>(device) >= kMaxDevices) return {};
  ReentryGuard guard;
  const DeviceProbe probe = space == MemorySpace::kDevice ? Probe(static_cast<int>(device)) : DeviceProbe{};
  return ToStats(ledger_.Totals(AccountOf(device, space)), space, probe);
}

TrackerStats ProfilerImpl::GetTrackerStats() const {
  ReentryGuard guard;
  TrackerStats stats;
  stats.foreign_frees = foreign_frees_.load(std::memory_order_relaxed);
  stats.replaced_records = replaced_records_.load(std::memory_order_relaxed);
  stats.dropped_records = dropped_records_.load(std::memory_order_relaxed);
  stats.dropped_bytes = dropped_bytes_.load(std::memory_order_relaxed);
  stats.reentrant_events = reentrant_events_.load(std::memory_order_relaxed);
  stats.truncated_stacks = truncated_stacks_.load(std::memory_order_relaxed);
  stats.dropped_tag_values = DroppedTagValues();
  stats.sites = sites_.size();
  stats.unwinder = capture_.name();
  stats.live_records = ledger_.CountLive();
  stats.host_bytes = HostBytes();
  stats.max_host_bytes = MaxHostBytes();
  return stats;
}

DeviceStats ProfilerImpl::ToStats(DeviceId device, MemorySpace space, const AccountTotals& totals) const {
  return ToStats(totals, space, space == MemorySpace::kDevice ? Probe(static_cast<int>(device)) : DeviceProbe{});
}

void ProfilerImpl::DescribeProcess(hbmprof::Snapshot* snapshot) const {
  snapshot->process_id = getpid();
  char host[256] = {};
  snapshot->host = gethostname(host, sizeof(host) - 1) == 0 ? host : "";
  snapshot->tracker = GetTrackerStats();
}

Snapshot ProfilerImpl::TakeSnapshot() const {
  // A profiler that also records the host's allocator must not record the memory allocated here.
  ReentryGuard guard;
  std::vector<SiteTotals> sites;
  std::vector<AccountTotals> accounts;
  ledger_.Snapshot(&sites, &accounts);
  const Births births(live_, ledger_.live_records(), static_cast<SiteId>(sites.size()));

  hbmprof::Snapshot snapshot;
  snapshot.uptime_seconds = LookAtClock() / kSecond;
  snapshot.birth_class_log2 = BirthClassLog2(*snapshot.uptime_seconds);
  snapshot.time_unix_nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  DescribeProcess(&snapshot);
  snapshot.allocators = allocators_.All();
  snapshot.counters = counters_.All();
  // No lock of the profiler is held here: listing the modules takes the dynamic linker's lock, and a library's
  // constructor, which runs under that lock, may be waiting for one of ours.
  snapshot.modules = LoadedModules();
  AddSamples(sites, births, AddDevices(accounts, &snapshot), &snapshot);
  AddPython(&snapshot);
  if (auto* const finish = finish_snapshot_.load(std::memory_order_acquire)) finish(&snapshot);
  return snapshot;
}

std::vector<uint32_t> ProfilerImpl::AddDevices(const std::vector<AccountTotals>& accounts,
                                               hbmprof::Snapshot* snapshot) const {
  std::vector<std::string> names = devices_.All();
  const auto named_devices = static_cast<int>(names.size());
  for (int device = named_devices; device < kMaxDevices; ++device) {
    // A caller may use a number that Device() did not return.
    names.push_back("unnamed:" + std::to_string(device));
  }
  std::vector<uint32_t> index_of(kMaxDevices, UINT32_MAX);
  snapshot->tracker.live_records = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    bool used = false;
    hbmprof::Snapshot::Device entry;
    entry.name = names[device];
    DeviceProbe probe = Probe(device);
    if (limit_of_thread != nullptr && limit_of_thread->is_silent(device)) {
      snapshot->warnings.push_back(names[device] +
                                   " did not answer at the end of the process; the numbers that only "
                                   "the device knows, such as its free memory, are missing");
    }
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const AccountTotals& totals = accounts[AccountOf(DeviceId(device), MemorySpace(space))];
      entry.spaces[space] = ToStats(totals, MemorySpace(space), probe);
      snapshot->tracker.live_records += totals.num_live;
      used = used || totals.is_used();
    }
    // A named device is shown even if nothing was allocated on it. Device 0 has a name even if no caller gave it one.
    const bool named = device > 0 ? device < named_devices : devices_.first_is_requested();
    if (!used && !named) continue;
    entry.uuid = std::move(probe.uuid);
    entry.processes = std::move(probe.processes);
    index_of[device] = static_cast<uint32_t>(snapshot->devices.size());
    snapshot->devices.push_back(std::move(entry));
  }
  return index_of;
}

void ProfilerImpl::AddSamples(const std::vector<SiteTotals>& sites, const Births& births,
                              const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) const {
  std::unordered_map<const StackRecord*, uint32_t> stack_index;
  std::unordered_map<TagSetId, std::vector<std::pair<std::string, std::string>>> tags;
  const std::vector<std::pair<std::string, std::string>> process_tags = Tags();
  for (SiteId site = 0; site < sites.size(); ++site) {
    const SiteTotals& totals = sites[site];
    // A resize moves the object to another site. The bytes by which it had grown before are still those of this site.
    if (totals.alloc_objects == 0 && totals.alloc_bytes == 0 && totals.inuse_objects == 0 && totals.inuse_bytes == 0 &&
        totals.peak_objects == 0 && totals.peak_bytes == 0) {
      continue;
    }
    const SiteKey key = sites_.Key(site);
    hbmprof::Snapshot::Sample sample;
    const auto [stack, is_new] = stack_index.emplace(key.stack, static_cast<uint32_t>(snapshot->stacks.size()));
    if (is_new) snapshot->stacks.push_back({sites_.PcsOf(*key.stack), key.stack->truncated});
    sample.stack = stack->second;
    sample.device = device_index[static_cast<size_t>(key.attributes.device)];
    sample.kind = key.attributes.kind;
    sample.allocator = static_cast<uint32_t>(key.attributes.allocator);
    if (sample.allocator >= snapshot->allocators.size()) sample.allocator = 0;
    const auto [set, is_new_set] = tags.try_emplace(key.tags);
    if (is_new_set) set->second = WithProcessTags(TagsOf(key.tags), process_tags);
    sample.tags = set->second;
    sample.block_bytes = static_cast<int64_t>(key.block_bytes);
    sample.alloc_objects = totals.alloc_objects;
    sample.alloc_bytes = totals.alloc_bytes;
    sample.peak_objects = totals.peak_objects;
    sample.peak_bytes = totals.peak_bytes;
    sample.inuse_objects = totals.inuse_objects;
    sample.inuse_bytes = totals.inuse_bytes;
    sample.born = births.Of(site, *snapshot->uptime_seconds, totals.inuse_objects, totals.inuse_bytes,
                            key.attributes.kind == MemoryKind::kPool);
    sample.freed_by_octave = ledger_.freed_ages().Of(site, totals.alloc_objects - totals.inuse_objects);
    snapshot->samples.push_back(std::move(sample));
  }
}

void ProfilerImpl::AddPython(hbmprof::Snapshot* snapshot) const {
  if (const PythonInterpreter* python = FoundPython()) {
    snapshot->python.version = python->version;
    snapshot->python.problem = reads_python_ ? python->problem.load(std::memory_order_acquire) : "turned off";
  }
  // All named frames of the process, so that the words of stacks are their entries in the snapshot.
  static_assert(kNamedFrameWord == hbmprof::Snapshot::kNamedFrame);
  const uint32_t count = NamedFrameCount();
  snapshot->named_frames.reserve(count);
  for (auto number = static_cast<uint32_t>(snapshot->named_frames.size()); number < count; ++number) {
    const NamedFrame& frame = *NamedFrameOf(kNamedFrameWord | number);
    snapshot->named_frames.push_back(
        {std::string(frame.function()), std::string(frame.file()), frame.line, frame.first_line});
  }
}

void ProfilerImpl::ResetPeak(DeviceId device) {
  if (static_cast<int>(device) >= kMaxDevices) return;
  ReentryGuard guard;
  for (int space = 0; space < kMemorySpaceCount; ++space) ledger_.ResetPeak(AccountOf(device, MemorySpace(space)));
}

void ProfilerImpl::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  ReentryGuard guard;
  if (has_given_up()) return;
  DroppedRecords dropped{device, survivor, {}};
  dropped.kept.reserve(kept.size());
  for (const BufferId id : kept) dropped.kept.push_back(id.value());
  std::sort(dropped.kept.begin(), dropped.kept.end());
  bool has_pools = pools_.has_segments();
  live_.EraseIf(
      [&](uint64_t id, const LiveRecord& record) {
        const SiteKey key = sites_.Key(record.site);
        if (Pools::IsBlockId(id) || key.in_pool) {
          has_pools = true;
          return false;
        }
        return dropped.HasKind(key.attributes) && !dropped.Keeps(id);
      },
      [&](uint64_t id, const LiveRecord& record) {
        ledger_.Enter(Ledger::Event::kFree, id, record.site, record.bytes, OctaveNow(record.birth));
      });
  if (has_pools) pools_.DropDevice(dropped);
  Resize();
}

void ProfilerImpl::DropProbes() {
  for (ProbeSlot& slot : probes_) new (&slot) ProbeSlot;
  driver_probes_.store(0, std::memory_order_relaxed);
}

void ProfilerImpl::StartInChild(bool is_usable) {
  DropProbes();
  if (!is_usable) {
    has_given_up_.store(true, std::memory_order_relaxed);
    enabled.store(false, std::memory_order_relaxed);
    return;
  }
  // The site cache, too: each site must be in the new ledger before its events (Ledger::MakeCells).
  Remake(pools_, sites_, live_, ledger_);
  Remake(ledger_, sites_, FlushEvery(max_live_));
  Remake(live_);
  Remake(site_cache_);
  size_limit_.store(usual_size_limit(), std::memory_order_relaxed);
  for (auto* counter : {&reentrant_events_, &foreign_frees_, &replaced_records_, &dropped_records_, &dropped_bytes_,
                        &truncated_stacks_}) {
    counter->store(0, std::memory_order_relaxed);
  }
}

}  // namespace hbmprof::internal
