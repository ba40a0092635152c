// hbmprof_attach and hbmprof_detach. Each exported function of NVIDIA's libcuda since version 470 jumps through a
// pointer of its own, its slot, in writable data. Attaching replaces these pointers by the wrappers, one by one, by
// compare-and-swap: no code is changed, and no thread has to stop. Pointers to the driver's functions that the program
// got earlier go through the slots too. The reports of PyTorch and TensorFlow are reached through
// the references of their libraries.
#include "src/base/attach.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"
#include "src/api/control/control_server.h"
#include "src/api/control/live.h"
#include "src/backends/cuda/driver/driver_shim.h"
#include "src/backends/cuda/driver/driver_table.h"
#include "src/backends/cuda/driver/memory_from_before.h"
#include "src/base/background_thread.h"
#include "src/base/completes.h"
#include "src/base/fork.h"
#include "src/base/linker_error.h"
#include "src/base/message.h"
#include "src/base/option_text.h"
#include "src/base/references.h"
#include "src/capture/given_stack.h"
#include "src/capture/python/named_frames.h"
#include "src/inject/attach_warnings.h"
#include "src/inject/frameworks/tensorflow_blocks.h"
#include "src/inject/frameworks/torch_blocks.h"
#include "src/inject/linker/deep_bind.h"
#include "src/inject/linker/report_hooks.h"

namespace hbmprof::internal {
namespace {

using cuda_driver::kEntryNames;
using cuda_driver::kWrappedCount;
using Place = std::atomic<void*>*;

enum class State { kDetached, kChanging, kAttached };
std::atomic<State> state{State::kDetached};
// The rest of the data is only changed in the state kChanging.
pid_t process = 0;  // 0: never attached
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

// Returns the slot through which the driver's function jumps; null if its code has another form.
Place SlotOf(const void* function) {
  const auto* code = static_cast<const unsigned char*>(function);
#if defined(__x86_64__)
  // [endbr64]; cmpl $0x321cba00, flag(%rip); je; jmp *slot(%rip)
  constexpr unsigned char kEndbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
  constexpr unsigned char kEnded[] = {0x00, 0xba, 0x1c, 0x32};
  if (std::memcmp(code, kEndbr, sizeof(kEndbr)) == 0) code += sizeof(kEndbr);
  const bool is_known = code[0] == 0x81 && code[1] == 0x3d && std::memcmp(code + 6, kEnded, sizeof(kEnded)) == 0 &&
                        code[10] == 0x74 && code[12] == 0xff && code[13] == 0x25;
  if (!is_known) return nullptr;
  int32_t distance;
  std::memcpy(&distance, code + 14, sizeof(distance));
  return reinterpret_cast<Place>(reinterpret_cast<uintptr_t>(code) + 18 + static_cast<uintptr_t>(intptr_t{distance}));
#elif defined(__aarch64__)
  // [bti c]; adrp; mov; movk; ldr; cmp; b.eq; adrp xN; ldr xN, [xN, #offset]; br xN
  uint32_t words[10];
  std::memcpy(words, code, sizeof(words));
  const bool has_bti = words[0] == 0xd503245f;
  const uint32_t* const w = words + (has_bti ? 1 : 0);
  const bool is_known = (w[0] & 0x9f000000) == 0x90000000 && (w[5] & 0xff00001f) == 0x54000000 &&
                        (w[6] & 0x9f000000) == 0x90000000 && (w[7] & 0xffc00000) == 0xf9400000 &&
                        (w[8] & 0xfffffc1f) == 0xd61f0000;
  if (!is_known || (w[7] >> 5 & 31) != (w[6] & 31) || (w[8] >> 5 & 31) != (w[7] & 31)) return nullptr;
  const uint64_t pages = uint64_t{w[6] >> 5 & 0x7ffff} << 2 | (w[6] >> 29 & 3);
  const auto signed_pages = static_cast<int64_t>(pages << 43) >> 43;
  const uintptr_t at = reinterpret_cast<uintptr_t>(code) + (has_bti ? 28 : 24);
  return reinterpret_cast<Place>((at & ~uintptr_t{4095}) + static_cast<uintptr_t>(signed_pages * 4096) +
                                 (w[7] >> 10 & 0xfff) * 8);
#else
  static_cast<void>(code);
  return nullptr;
#endif
}

// The driver's library in memory.
class DriverImage {
 public:
  explicit DriverImage(const link_map& map) : base_(map.l_addr) {
    Dl_info info;
    if (dladdr(map.l_ld, &info) != 0) header_ = static_cast<const ElfW(Ehdr)*>(info.dli_fbase);
  }
  // Whether 8 aligned bytes at `address` belong to data that stay writable.
  bool HasWritable(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at % sizeof(void*) == 0 && IsIn(PT_LOAD, PF_W, at) && !IsIn(PT_GNU_RELRO, 0, at);
  }
  bool Has(const void* address) const { return IsIn(PT_LOAD, 0, reinterpret_cast<uintptr_t>(address)); }

 private:
  bool IsIn(uint32_t type, uint32_t flags, uintptr_t at) const {
    if (header_ == nullptr) return false;
    const auto* segment =
        reinterpret_cast<const ElfW(Phdr)*>(reinterpret_cast<const char*>(header_) + header_->e_phoff);
    for (int i = 0; i < header_->e_phnum; ++i, ++segment) {
      if (segment->p_type == type && (segment->p_flags & flags) == flags &&
          at - (base_ + segment->p_vaddr) < segment->p_memsz) {
        return true;
      }
    }
    return false;
  }
  const uintptr_t base_;
  const ElfW(Ehdr) * header_ = nullptr;
};

void* WrapperOf(int entry) { return CudaWrapperByName(kEntryNames[entry]); }

// Finds all slots. Changes nothing in the driver.
AttachCode FindSlots() {
  void* const library = CudaDriverLibrary();
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return kAttachNoDriver;
  const DriverImage image(*map);
  int found = 0;
  for (int i = 0; i < kWrappedCount; ++i) {
    const void* const function = FindSymbol(library, kEntryNames[i]);
    slots[i] = {};
    if (function == nullptr) continue;
    const Place place = image.Has(function) ? SlotOf(function) : nullptr;
    if (place == nullptr || !image.HasWritable(place)) return kAttachUnknownForm;
    for (int j = 0; j < i; ++j) {
      if (slots[j].place == place) return kAttachUnknownForm;
    }
    slots[i] = {place, place->load(std::memory_order_acquire)};
    if (!image.Has(slots[i].original)) return kAttachForeignSlot;
    ++found;
  }
  ClearLinkerError();
  slots_found.store(found, std::memory_order_relaxed);
  return found == 0 ? kAttachUnknownForm : kAttached;
}

// Puts back the slots that are still ours.
void RestoreSlots() {
  for (int i = 0; i < kWrappedCount; ++i) {
    void* expected = WrapperOf(i);
    if (slots[i].place != nullptr) slots[i].place->compare_exchange_strong(expected, slots[i].original);
  }
  slots_set.store(0, std::memory_order_relaxed);
}

AttachCode SetSlots() {
  int set = 0;
  for (int i = 0; i < kWrappedCount; ++i) {
    void* expected = slots[i].original;
    if (slots[i].place == nullptr) continue;
    if (!slots[i].place->compare_exchange_strong(expected, WrapperOf(i))) {
      RestoreSlots();
      return kAttachForeignSlot;
    }
    ++set;
  }
  slots_set.store(set, std::memory_order_relaxed);
  return kAttached;
}

void SetReportReferences() {
  const auto visit = [](dl_phdr_info* object, size_t, void* count) {
    const char* const slash = std::strrchr(object->dlpi_name, '/');
    const std::string_view file = slash == nullptr ? "" : slash + 1;
    const bool is_tensorflow = file.rfind("libtensorflow_framework.so", 0) == 0;
    if (!is_tensorflow && file.rfind("libc10_cuda.so", 0) != 0) return 0;
    const ElfW(Dyn)* dynamic = nullptr;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = object->dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + header.p_vaddr);
    }
    int& found = *static_cast<int*>(count);
    const auto set = [&](const char* name, void** place, bool) {
      void* const stub = is_tensorflow ? TensorflowHookByName(name) : TorchHookByName(name);
      void* const value = __atomic_load_n(place, __ATOMIC_ACQUIRE);
      if (stub == nullptr || value == stub || found == kMaxReferences) return;
      references[found++] = {place, value, stub};
      WriteProtected(place, stub);
    };
    ForEachReference(object->dlpi_addr, dynamic, set, /*with_own=*/is_tensorflow);
    return 0;
  };
  int found = 0;
  EnterMutexSection();  // a fork waits, so that the child does not find the dynamic linker's lock held
  dl_iterate_phdr(visit, &found);
  LeaveMutexSection();
  reference_count.store(found, std::memory_order_relaxed);
}

void RestoreReportReferences() {
  const int count = reference_count.exchange(0, std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    const Reference& reference = references[i];
    if (__atomic_load_n(reference.place, __ATOMIC_ACQUIRE) == reference.stub) {
      WriteProtected(reference.place, reference.original);
    }
  }
}

// Makes the options those of this process.
AttachCode TakeOptions(const char* options) {
  const size_t bytes = strnlen(options, kMaxAttachOptionBytes);
  if (bytes == kMaxAttachOptionBytes) return kAttachOptionsTooLong;
  auto* const copy = static_cast<char*>(std::malloc(bytes + 1));  // never freed
  if (copy == nullptr) return kAttachNoMemory;
  std::memcpy(copy, options, bytes + 1);
  ReplaceOptions(copy, bytes + 1);
  return kAttached;
}

// Measures the devices whose bytes the driver reports outside of a context, which takes a while.
void* MeasureInThread(void* /*argument*/) {
  constexpr int kAttempts = 200;
  MeasureCudaMemoryFromBefore(kAttempts);
  return nullptr;
}

std::string Describe() {
  const auto get_version = reinterpret_cast<int (*)(int*)>(FindSymbol(CudaDriverLibrary(), "cuDriverGetVersion"));
  int version = 0;
  if (get_version != nullptr) get_version(&version);
  link_map* map = nullptr;
  const bool has_path = dlinfo(CudaDriverLibrary(), RTLD_DI_LINKMAP, &map) == 0;
  std::string text =
      absl::StrCat("attach ", state.load() == State::kAttached ? "attached" : "detached", "\nfunctions ",
                   slots_set.load(), " ", slots_found.load(), "\ndriver ", version, " ", has_path ? map->l_name : "",
                   "\nreferences ", reference_count.load(), "\ncalls ", EndedCudaCalls() - calls_before.load(), "\n");
  const CudaMemoryFromBefore* const before = CudaMemoryFromBeforeOfProcess();
  const Snapshot snapshot = Profiler::Default().TakeSnapshot();
  for (const Snapshot::Device& device : snapshot.devices) {
    if (before == nullptr) break;
    const CudaMemoryFromBefore::Bytes bytes = before->Of(Profiler::Default().Device(device.name));
    if (!bytes.is_measured) continue;
    absl::StrAppend(&text, "before ", bytes.left, " ", bytes.segments, " ", device.name, "\n");
  }
  return text;
}

constexpr AttachRequests kRequests = {&hbmprof_attach, &hbmprof_detach, &Describe};

// In the state kChanging.
AttachCode Attach(const char* options) {
  static bool has_options = false;
  if (!cuda_driver::LoadDriverFunctions()) return kAttachNoDriver;
  if (const AttachCode code = FindSlots(); code != kAttached) return code;
  if (options != nullptr && !has_options) {
    if (const AttachCode code = TakeOptions(options); code != kAttached) return code;
    has_options = true;
  }
  ForkWithoutGate();
  for (int i = 0; i < kWrappedCount; ++i) {
    if (slots[i].place != nullptr) cuda_driver::SetDriverFunction(i, slots[i].original);
  }
  static uintptr_t stack[1] = {};
  stack[0] = InternNamedFrame("[before attach]", "", 0, 0);
  CudaMemoryFromBefore* const before = CudaMemoryFromBeforeOfProcess();
  if (before == nullptr || stack[0] == 0) return kAttachNoMemory;
  SetAttachRequests(&kRequests);
  SetTracking(true);  // ends the records of an earlier time
  before->Expect(CallerOfStack(stack, 1));
  calls_before.store(EndedCudaCalls(), std::memory_order_relaxed);
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
  const char* const thread = OptionText("HBMPROF_ATTACH");
  if (thread == nullptr || std::strcmp(thread, "borrowed") != 0) MeasureCudaMemoryFromBefore(/*attempts=*/20);
  StartBackgroundThread(&MeasureInThread, nullptr);
  return kAttached;
}

// Moves from the state `from` to kChanging. Returns false if the state is another one.
bool Begin(State from) { return state.compare_exchange_strong(from, State::kChanging); }

AttachCode WhyNot(AttachCode otherwise) { return state.load() == State::kChanging ? kAttachBusy : otherwise; }

}  // namespace

void AddAttachWarnings(Snapshot* snapshot) {
  constexpr int64_t kLeastGrowth = int64_t{16} << 20;
  if (state.load() != State::kAttached || EndedCudaCalls() != calls_before.load()) return;
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
  if (!WasLoadedLate()) return kAttachPreloaded;
  if (process != 0 && process != getpid()) return kAttachForkedChild;
  if (!Begin(State::kDetached)) return WhyNot(kAttachedAlready);
  AttachCode code = kAttachNoMemory;
  if (!Completes([&] { code = Attach(options); })) code = kAttachNoMemory;
  state.store(code == kAttached ? State::kAttached : State::kDetached);
  return code;
}

[[gnu::visibility("default")]] const char* hbmprof_attach_text(int code) { return hbmprof::internal::AttachText(code); }

[[gnu::visibility("default")]] int hbmprof_detach() {
  using namespace hbmprof::internal;  // NOLINT: its functions
  if (!WasLoadedLate()) return kAttachPreloaded;
  if (process != 0 && process != getpid()) return kAttachForkedChild;
  if (!Begin(State::kAttached)) return WhyNot(kNotAttached);
  RestoreSlots();
  RestoreReportReferences();
  static_cast<void>(Completes([] { SetTracking(false); }));
  state.store(State::kDetached);
  return kAttached;
}
}
