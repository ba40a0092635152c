// hbmprof_attach and hbmprof_detach. Each exported function of NVIDIA's libcuda since version 470 jumps or calls
// through a pointer of its own, its slot, in writable data. Attaching replaces these pointers by the wrappers, one by
// one, by compare-and-swap: no code is changed, and no thread has to stop. Pointers to the driver's functions that the
// program got earlier go through the slots too. The reports of PyTorch and TensorFlow are reached through the
// references of their libraries.
#include "src/protocol/attach.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"
#include "src/api/control/control_server.h"
#include "src/api/control/live.h"
#include "src/backends/calls/memory_from_before.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/base/background_thread.h"
#include "src/base/fork.h"
#include "src/base/linker_error.h"
#include "src/base/loaded_objects.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/option_text.h"
#include "src/base/protected_page.h"
#include "src/base/references.h"
#include "src/base/try_run.h"
#include "src/capture/given_stack.h"
#include "src/capture/python/named_frames.h"
#include "src/core/snapshot_builder.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/deep_bind.h"
#include "src/inject/linker/report_hooks.h"
#include "src/protocol/control.h"
#include "src/protocol/driver_slot.h"

namespace hbmprof::internal {
namespace {

using cuda_driver::driver;
using cuda_driver::kWrappedCount;
using Place = std::atomic<void*>*;

enum class State { kDetached, kChanging, kAttached };
std::atomic<State> state{State::kDetached};
// The rest of the data is only changed in the state kChanging.
std::atomic<pid_t> process{0};  // 0: never attached
std::atomic<uint32_t> calls_before{0};

struct Slot {
  Place place = nullptr;  // null: this driver does not have the function
  void* original = nullptr;
};
Slot slots[kWrappedCount];
std::atomic<int> slots_set{0};
std::atomic<int> slots_found{0};

// A reference of a framework's library to a report function.
struct Reference {
  void** place;
  void* original;
  void* stub;
};
constexpr int kMaxReferences = 64;
Reference references[kMaxReferences];
std::atomic<int> reference_count{0};

bool Contains(const dl_phdr_info& object, const void* address) {
  return SegmentOf(object, PT_LOAD, reinterpret_cast<uintptr_t>(address)) != nullptr;
}

// Whether 8 aligned bytes at `address` belong to data of the object that stay writable.
bool HasWritable(const dl_phdr_info& object, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const ElfW(Phdr)* const segment = SegmentOf(object, PT_LOAD, at);
  return at % sizeof(void*) == 0 && segment != nullptr && (segment->p_flags & PF_W) != 0 &&
         SegmentOf(object, PT_GNU_RELRO, at) == nullptr;
}

void* WrapperOfEntry(int entry) { return WrapperByName(driver.entry_names[entry]); }

// Finds all slots. Changes nothing in the driver. It can leave an error of dlsym.
AttachCode FindSlots() {
  void* const library = driver.Library();
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return kAttachNoDriver;
  const dl_phdr_info object = ObjectOf(map->l_ld);
  int found = 0;
  for (int i = 0; i < kWrappedCount; ++i) {
    const void* const function = FindSymbol(library, driver.entry_names[i]);
    slots[i] = {};
    if (function == nullptr) continue;
    if (!Contains(object, function)) return kAttachUnknownForm;
    const auto place = reinterpret_cast<Place>(
        DriverSlotOf(static_cast<const unsigned char*>(function), reinterpret_cast<uintptr_t>(function)));
    if (place == nullptr || !HasWritable(object, place)) return kAttachUnknownForm;
    for (int j = 0; j < i; ++j) {
      if (slots[j].place == place) return kAttachUnknownForm;
    }
    slots[i] = {place, place->load(std::memory_order_acquire)};
    if (!Contains(object, slots[i].original)) return kAttachForeignSlot;
    ++found;
  }
  slots_found.store(found, std::memory_order_relaxed);
  return found == 0 ? kAttachUnknownForm : kAttached;
}

// Puts back the slots that are still ours.
void RestoreSlots() {
  for (int i = 0; i < kWrappedCount; ++i) {
    void* expected = WrapperOfEntry(i);
    if (slots[i].place != nullptr) slots[i].place->compare_exchange_strong(expected, slots[i].original);
  }
  slots_set.store(0, std::memory_order_relaxed);
}

AttachCode SetSlots() {
  int set = 0;
  for (int i = 0; i < kWrappedCount; ++i) {
    void* expected = slots[i].original;
    if (slots[i].place == nullptr) continue;
    if (!slots[i].place->compare_exchange_strong(expected, WrapperOfEntry(i))) {
      RestoreSlots();
      return kAttachForeignSlot;
    }
    ++set;
  }
  slots_set.store(set, std::memory_order_relaxed);
  return kAttached;
}

// The libraries stay loaded, because their references are restored later.
void SetReportReferences() {
  int found = 0;
  const auto set_of = [&](const char* file, void* (*hook_by_name)(const char*), bool with_own) {
    void* const library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    link_map* map = nullptr;
    if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return ClearLinkerError();
    const auto set = [&](const char* name, void** place, bool) {
      void* const stub = hook_by_name(name);
      void* const value = __atomic_load_n(place, __ATOMIC_ACQUIRE);
      if (stub == nullptr || value == stub || found == kMaxReferences) return;
      references[found++] = {place, value, stub};
      StoreProtected(place, stub);
    };
    ForEachReference(map->l_addr, map->l_ld, set, with_own);
  };
  set_of("libc10_cuda.so", &TorchHookByName, false);
  set_of("libtensorflow_framework.so.2", &TensorflowHookByName, true);
  reference_count.store(found, std::memory_order_relaxed);
}

void RestoreReportReferences() {
  const int count = reference_count.exchange(0, std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    const Reference& reference = references[i];
    if (__atomic_load_n(reference.place, __ATOMIC_ACQUIRE) == reference.stub) {
      StoreProtected(reference.place, reference.original);
    }
  }
}

// Starts the control channel if the options want one. Returns false if it cannot be started. Throws std::bad_alloc.
bool HasControlChannel() {
  const char* const directory = OptionText(kControlDirectoryVariable);
  if (directory == nullptr || *directory == '\0' || strcasecmp(directory, "off") == 0) return true;
  const absl::Status status = StartControlServer(directory);
  if (!status.ok()) PrintMessage("hbmprof: ", {status.message().data(), status.message().size()});
  return status.ok();
}

// Measures the devices whose bytes the driver reports outside of a context, which takes a while.
void* MeasureInThread(void* /*argument*/) {
  constexpr int kAttempts = 200;
  // Without host memory for it, the next free of memory from before attach measures.
  static_cast<void>(TryRun([] { MeasureMemoryFromBefore(kAttempts); }));
  return nullptr;
}

std::string Describe() {
  constexpr const char* kNames[] = {"detached", "changing", "attached"};  // by State
  std::string text = absl::StrCat("attach ", kNames[static_cast<int>(state.load())], "\nfunctions ", slots_set.load(),
                                  " ", slots_found.load(), "\nreferences ", reference_count.load(), "\ncalls ",
                                  EndedCalls() - calls_before.load(), "\n");
  const MemoryFromBefore* const before = MemoryFromBeforeOfProcess();
  const Snapshot snapshot = SnapshotOf(Profiler::Default(), SnapshotParts::kDevices);
  for (const Snapshot::Device& device : snapshot.devices) {
    if (before == nullptr) break;
    const MemoryFromBefore::Bytes bytes = before->Of(Profiler::Default().Device(device.name));
    if (!bytes.is_measured) continue;
    absl::StrAppend(&text, "before ", bytes.left, " ", bytes.segments, " ", device.name, "\n");
  }
  return text;
}

bool IsDetached() { return state.load() == State::kDetached; }

constexpr AttachRequests kRequests = {&hbmprof_attach, &hbmprof_detach, &Describe, &IsDetached};

// In the state kChanging.
AttachCode Attach(const char* options) {
  if (!driver.Load()) return kAttachNoDriver;
  const AttachCode form = FindSlots();
  ClearLinkerError();
  if (form != kAttached) return form;
  if (options != nullptr && process == 0) {
    const size_t bytes = strnlen(options, kMaxAttachOptionBytes);
    if (bytes == kMaxAttachOptionBytes) return kAttachOptionsTooLong;
    if (!ReplaceOptions(options, bytes)) return kAttachNoMemory;
  }
  if (!BeginEvent()) return kAttachForkedChild;
  // Before the profiler is made, so that a process without the channel writes no profile.
  PrepareTracking();
  SetAttachRequests(&kRequests);
  if (!HasControlChannel()) return kAttachNoControl;
  for (int i = 0; i < kWrappedCount; ++i) {
    if (slots[i].place != nullptr) driver.SetDriverFunction(i, slots[i].original);
  }
  static uintptr_t stack[1] = {};
  if (stack[0] == 0) stack[0] = InternNamedFrame("[before attach]", "", 0, 0);
  MemoryFromBefore* const before = MemoryFromBeforeOfProcess();
  if (before == nullptr || stack[0] == 0) return kAttachNoMemory;
  SetTracking(true);  // ends the records of an earlier time
  FollowCalls(true);
  before->Expect(CallerOfStack(stack, 1), /*is_measured=*/true);
  calls_before.store(EndedCalls(), std::memory_order_relaxed);
  TorchMayHaveBlocks();
  TensorflowMayHaveBlocks();
  SetReportReferences();
  const AttachCode code = SetSlots();
  if (code != kAttached) {
    RestoreReportReferences();
    SetTracking(false);
    return code;
  }
  process = getpid();
  const char* const thread = OptionText(kAttachThread);
  if (thread == nullptr || std::strcmp(thread, kAttachBorrowed) != 0) MeasureMemoryFromBefore(/*attempts=*/20);
  StartBackgroundThread(&MeasureInThread, nullptr);
  return kAttached;
}

// Moves from the state `from` to kChanging, and returns kAttached. If that is not possible, returns why; `otherwise` if
// another state is the reason.
AttachCode Begin(State from, AttachCode otherwise) {
  if (!WasLoadedLate()) return kAttachPreloaded;
  if (SharesParentsMemory()) return kAttachParentsMemory;
  if (process != 0 && process != getpid()) return kAttachForkedChild;
  if (state.compare_exchange_strong(from, State::kChanging)) return kAttached;
  return from == State::kChanging ? kAttachBusy : otherwise;
}

}  // namespace

void AddAttachWarnings(Snapshot* snapshot) {
  constexpr int64_t kLeastGrowth = int64_t{16} << 20;
  if (state.load() != State::kAttached || EndedCalls() != calls_before.load()) return;
  for (const Snapshot::Device& device : snapshot->devices) {
    const DeviceStats& stats = device.spaces[static_cast<int>(MemorySpace::kDevice)];
    if (stats.unaccounted.value_or(0) < kLeastGrowth) continue;
    snapshot->warnings.push_back(
        absl::StrCat("no call of the CUDA driver was seen since hbmprof was attached, but the memory in use of ",
                     device.name, " grew by ", *stats.unaccounted,
                     " bytes: this program does not call the functions of libcuda.so.1; use `hbmprof run`"));
  }
}

}  // namespace hbmprof::internal

extern "C" {

[[gnu::visibility("default")]] int hbmprof_attach(const char* options) {
  using namespace hbmprof::internal;  // NOLINT: its functions
  const NoCancellation no_cancellation;
  AttachCode code = Begin(State::kDetached, kAttachedAlready);
  if (code != kAttached) return code;
  if (!TryRun([&] { code = Attach(options); })) code = kAttachNoMemory;
  state.store(code == kAttached ? State::kAttached : State::kDetached);
  return code;
}

[[gnu::visibility("default")]] const char* hbmprof_attach_text(int code) { return hbmprof::internal::AttachText(code); }

[[gnu::visibility("default")]] int hbmprof_detach() {
  using namespace hbmprof::internal;  // NOLINT: its functions
  const NoCancellation no_cancellation;
  if (const AttachCode code = Begin(State::kAttached, kNotAttached); code != kAttached) return code;
  RestoreSlots();
  RestoreReportReferences();
  static_cast<void>(TryRun([] { SetTracking(false); }));
  FollowCalls(false);
  state.store(State::kDetached);
  return kAttached;
}
}
