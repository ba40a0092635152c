#include "src/core/injected/injected.h"

#include <dlfcn.h>

#include "hbmprof/version.h"
#include "src/base/linker_error.h"
#include "src/base/message.h"

namespace hbmprof::internal {

const InjectedProfiler kNoInjected = {};
std::atomic<const InjectedProfiler*> found_injected{nullptr};

namespace {

// The versions that have this C interface: those with the same soname.
constexpr std::string_view kSameInterface =
    HBMPROF_VERSION_MAJOR == 0
        ? HBMPROF_STRINGIFY_(HBMPROF_VERSION_MAJOR) "." HBMPROF_STRINGIFY_(HBMPROF_VERSION_MINOR) "."
        : HBMPROF_STRINGIFY_(HBMPROF_VERSION_MAJOR) ".";

template <typename Function>
bool Find(const char* name, Function** function) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  // Threads that search at the same time store the same value.
  __atomic_store_n(function, found, __ATOMIC_RELAXED);
  if (found == nullptr) ClearLinkerError();
  return found != nullptr;
}

InjectedProfiler functions;

bool FindAll() {
  bool has_all = true;
#define HBMPROF_FIND(name) has_all = Find("hbmprof_injected_" #name, &functions.name) && has_all;
  HBMPROF_INJECTED_EVENTS(HBMPROF_FIND)
  HBMPROF_INJECTED_OWN(HBMPROF_FIND)
  HBMPROF_INJECTED_OTHERS(HBMPROF_FIND)
#undef HBMPROF_FIND
  return has_all && std::string_view(functions.version()).substr(0, kSameInterface.size()) == kSameInterface;
}

// Runs when the library is loaded, so that the dynamic linker's lock is not needed later.
[[gnu::constructor]] void FindEarly() { InjectedOfProcess(); }

}  // namespace

// No lock is held, because the search takes the dynamic linker's lock. Threads that search at the same time find the
// same functions, and the first one prints the message.
const InjectedProfiler* FindInjected() {
  // This copy can be the injected library itself.
  const bool is_there = Find("hbmprof_injected_version", &functions.version) && functions.version != &::hbmprof_version;
  const InjectedProfiler* const injected = is_there && FindAll() ? &functions : nullptr;
  const bool is_first = found_injected.exchange(injected != nullptr ? injected : &kNoInjected) == nullptr;
  if (is_first && is_there && injected == nullptr) {
    PrintMessage(
        "hbmprof: the program contains another version of hbmprof than libhbmprof_gpu.so. Each records separately; "
        "do not add up their profiles");
  }
  return injected;
}

void StaySeparate() { found_injected.store(&kNoInjected, std::memory_order_release); }

}  // namespace hbmprof::internal
