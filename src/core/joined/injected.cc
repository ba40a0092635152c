#include "src/core/joined/injected.h"

#include <dlfcn.h>

#include "src/base/linker_error.h"
#include "src/base/message.h"

namespace hbmprof::internal {

const InjectedProfiler kNoInjected = {};
std::atomic<const InjectedProfiler*> found_injected{nullptr};

namespace {

// Null if there is no injected library.
const InjectedProfiler* Look() {
  auto* const get = reinterpret_cast<GetInjected*>(dlsym(RTLD_DEFAULT, kInjectedSymbol));
  if (get != nullptr) return get();
  ClearLinkerError();
  return nullptr;
}

// Runs when the library is loaded, so that the dynamic linker's lock is not needed later.
[[gnu::constructor]] void FindEarly() { FindInjected(); }

}  // namespace

const InjectedProfiler* FindInjected() {
  if (found_injected.load(std::memory_order_acquire) == nullptr) {
    const InjectedProfiler* injected = Look();
    const bool fits = injected != nullptr && injected->struct_size >= sizeof(InjectedProfiler) &&
                      injected->version == kInjectedVersion;
    const bool is_other = injected != nullptr && !fits;
    if (!fits || injected->copy == &found_injected) injected = &kNoInjected;
    // Threads that search at the same time find the same profiler. The first one prints the message. No lock is held,
    // because the search takes the dynamic linker's lock.
    const InjectedProfiler* undecided = nullptr;
    if (found_injected.compare_exchange_strong(undecided, injected, std::memory_order_acq_rel) && is_other) {
      PrintMessage(
          "hbmprof: the program contains another version of hbmprof than libhbmprof_cuda.so. Each records separately; "
          "do not add up their profiles");
    }
  }
  const InjectedProfiler* const found = found_injected.load(std::memory_order_acquire);
  return found == &kNoInjected ? nullptr : found;
}

void StaySeparate() { found_injected.store(&kNoInjected, std::memory_order_release); }

}  // namespace hbmprof::internal
