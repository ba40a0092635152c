// The real functions are searched in the symbol tables of the loaded objects. dlsym cannot find them: Python loads
// the libraries with RTLD_LOCAL. dlsym also must not be called here: it takes the lock under which dlopen runs
// constructors, and a constructor may allocate.
#include "src/inject/linker/report_hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstring>

#include "src/base/exports.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/linker_section.h"
#include "src/base/loaded_objects.h"
#include "src/base/try_run.h"
#include "src/inject/linker/jump_stub.h"

#define HBMPROF_REPORT_MEMORY _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define HBMPROF_REPORT_OUT_OF_MEMORY _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE
#define HBMPROF_ADD_TRACE_ME _ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll
#define HBMPROF_TEXT_OF(name) #name
#define HBMPROF_TEXT(name) HBMPROF_TEXT_OF(name)

extern "C" {
// The stubs. Only the frameworks know the types of their arguments.
void HBMPROF_REPORT_MEMORY();
void HBMPROF_REPORT_OUT_OF_MEMORY();
void HBMPROF_ADD_TRACE_ME();
}

namespace hbmprof::internal {
namespace {

// Returns the address of the function `name` that this object defines; 0 if it defines none.
uintptr_t FunctionIn(uintptr_t base, const ElfW(Dyn) * dynamic, const char* name) {
  const Exports::Symbol symbol = Exports(base, dynamic).Find(name);
  return symbol.is_function ? symbol.address : 0;
}

// Returns the link map of the object that contains `address`; null if there is none. Takes no lock that dlopen holds
// while it runs constructors.
const link_map* LibraryOf(uintptr_t address) {
  dl_find_object object;
  if (address == 0 || _dl_find_object(reinterpret_cast<void*>(address), &object) != 0) return nullptr;
  return object.dlfo_link_map;
}

// One of the functions, as the last search found it.
class Original {
 public:
  constexpr Original(const char* name, void (*stub)()) : name_(name), stub_(stub) {}

  // Returns its address in any loaded object; 0 if none defines it. Searches again if a library was unloaded.
  // `unloads`: UnloadCount(). A process that is off (fork.h) does not search: what its parent has found is used.
  uintptr_t Get(uint64_t unloads) {
    const bool is_current = unloads_.load(std::memory_order_acquire) == unloads;
    const uintptr_t known = function_.load(std::memory_order_relaxed);
    if (is_current || (known != 0 && unloads >= kUnknownUnloads) || IsOff()) return known;
    uintptr_t found = 0;
    ForEachLoadedObject([this, &found](const dl_phdr_info& object) {
      if (found != 0) return;
      found = FunctionIn(object.dlpi_addr, DynamicSection(object), name_);
      if (found == reinterpret_cast<uintptr_t>(stub_)) found = 0;
    });
    function_.store(found, std::memory_order_relaxed);
    if (found != 0) unloads_.store(unloads, std::memory_order_release);
    return found;
  }

  // Returns its address in the object that contains the code at `pc`; 0 if that object does not define it. Takes no
  // lock that dlopen holds while it runs constructors.
  uintptr_t GetOfCaller(uintptr_t pc) {
    const link_map* const library = LibraryOf(pc);
    if (library == nullptr) return 0;
    const uintptr_t known = function_.load(std::memory_order_relaxed);
    if (known != 0 && LibraryOf(known) == library) return known;
    const uintptr_t found = FunctionIn(library->l_addr, library->l_ld, name_);
    function_.store(found, std::memory_order_relaxed);
    return found;
  }

 private:
  const char* const name_;
  void (*const stub_)();
  std::atomic<uintptr_t> function_{0};
  std::atomic<uint64_t> unloads_{0};  // UnloadCount() before Get searched; 0: it has not found the function yet
};

constexpr char kReportMemory[] = HBMPROF_TEXT(HBMPROF_REPORT_MEMORY);
constexpr char kReportOutOfMemory[] = HBMPROF_TEXT(HBMPROF_REPORT_OUT_OF_MEMORY);
constexpr char kAddTraceMe[] = HBMPROF_TEXT(HBMPROF_ADD_TRACE_ME);
Original original_report_memory(kReportMemory, &HBMPROF_REPORT_MEMORY);
Original original_report_out_of_memory(kReportOutOfMemory, &HBMPROF_REPORT_OUT_OF_MEMORY);
Original original_add_trace_me(kAddTraceMe, &HBMPROF_ADD_TRACE_ME);
// c10::cuda::getCurrentCUDAStream(int8_t), which is not interposed. It is in the library that reports blocks.
Original current_stream("_ZN3c104cuda20getCurrentCUDAStreamEa", nullptr);

}  // namespace

int64_t CurrentTorchStream(int device, const Caller& caller) {
  struct Stream {  // c10::cuda::CUDAStream, of all releases with this name of the function
    int16_t device;
    int64_t id;
  };
  const uintptr_t function = current_stream.GetOfCaller(caller.pc - 1);
  if (function == 0) return 0;
  const auto get = reinterpret_cast<Stream (*)(int8_t)>(function);
  int64_t id = 0;
  return TryRun([&] { id = get(static_cast<int8_t>(device)).id; }) ? id : 0;
}

void* TorchHookByName(const char* name) {
  if (name[0] != '_') return nullptr;
  if (std::strcmp(name, kReportMemory) == 0) return reinterpret_cast<void*>(&HBMPROF_REPORT_MEMORY);
  if (std::strcmp(name, kReportOutOfMemory) == 0) return reinterpret_cast<void*>(&HBMPROF_REPORT_OUT_OF_MEMORY);
  return nullptr;
}

void* TensorflowHookByName(const char* name) {
  return std::strcmp(name, kAddTraceMe) == 0 ? reinterpret_cast<void*>(&HBMPROF_ADD_TRACE_ME) : nullptr;
}

}  // namespace hbmprof::internal

using namespace hbmprof::internal;  // NOLINT

extern "C" {

// Called by the stubs (jump_stub.h).
[[gnu::visibility("hidden"), gnu::used]] uintptr_t hbmprof_torch_memory(uint64_t address, int64_t bytes,
                                                                        uint64_t allocated, uint64_t reserved,
                                                                        uint64_t device, uint64_t /*unused*/,
                                                                        const hbmprof::Caller* caller) noexcept {
  const KeptErrno kept_errno;
  uint64_t& unloads = last_unload_count;
  unloads = 0;
  TorchReportsMemory(address, bytes, allocated, reserved, TorchDevice(device), *caller);
  // A count since the begin of the report is enough, because its caller needs the function's library.
  if (unloads == 0 && !IsOff()) UnloadCount();
  const uintptr_t function = original_report_memory.Get(unloads);
  // A process that is off does not search. If its parent has not found the function, that of the caller's library is
  // used.
  return function != 0 ? function : original_report_memory.GetOfCaller(caller->pc - 1);
}

[[gnu::visibility("hidden"), gnu::used]] uintptr_t hbmprof_torch_out_of_memory(int64_t bytes, uint64_t allocated,
                                                                               uint64_t reserved,
                                                                               uint64_t device) noexcept {
  const KeptErrno kept_errno;
  TorchReportsOutOfMemory(bytes, allocated, reserved, TorchDevice(device));
  const uint64_t unloads = IsOff() ? 0 : UnloadCount();
  return original_report_out_of_memory.Get(unloads);
}

// A std::string_view is passed as its length and its pointer. The function is private, so its caller is in the library
// that defines it. (A process can contain several copies of TensorFlow's allocator, of different versions.)
[[gnu::visibility("hidden"), gnu::used]] uintptr_t hbmprof_tensorflow_memory(uint64_t /*allocator*/, uint64_t length,
                                                                             const char* event, uint64_t address,
                                                                             int64_t requested, int64_t bytes,
                                                                             const hbmprof::Caller* caller) noexcept {
  const KeptErrno kept_errno;
  TensorflowReportsMemory({event, length}, address, requested, bytes, *caller);
  return original_add_trace_me.GetOfCaller(caller->pc - 1);
}
}

asm(R"(
    hbmprof_jump_stub )" HBMPROF_TEXT(HBMPROF_REPORT_MEMORY) R"( hbmprof_torch_memory
    hbmprof_jump_stub )" HBMPROF_TEXT(HBMPROF_REPORT_OUT_OF_MEMORY) R"( hbmprof_torch_out_of_memory
    hbmprof_jump_stub )" HBMPROF_TEXT(HBMPROF_ADD_TRACE_ME) R"( hbmprof_tensorflow_memory
)");
