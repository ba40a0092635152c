// Wrap: makes a copy of a plugin's table with the hooks in their slots.
//
// A function in a slot gets no context argument, so each wrapped plugin needs its own functions. The templates below
// make one set of functions for each of kMaxPlugins plugins.
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "hbmprof/pjrt.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/hooks.h"
#include "src/base/fork.h"
#include "src/base/message.h"
#include "src/base/mutex.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

constexpr size_t kMaxPlugins = 8;
// Many times the size of any known table. A table with a larger size is treated as damaged.
constexpr size_t kMaxTableBytes = 1 << 16;

std::atomic<TrackedPlugin*> tracked_plugins[kMaxPlugins];

// The function that the program calls. It must keep a stack frame of its own.
template <int kPlugin, int kHook>
[[gnu::noinline]] pjrt::Error* Enter(void* args) {
  const Caller caller = Caller::OfThisFunction();
  TrackedPlugin& tracked = *tracked_plugins[kPlugin].load(std::memory_order_acquire);
  if (!BeginEvent()) return tracked.plugin.Call(kPjrtHooks[kHook].slot, args);
  return kPjrtHooks[kHook].run(tracked, caller, args);
}

using EntryPoint = pjrt::Error* (*)(void*);

template <int kPlugin, int... kHooks>
constexpr std::array<EntryPoint, kPjrtHookCount> EntryPointsOf(std::integer_sequence<int, kHooks...>) {
  return {&Enter<kPlugin, kHooks>...};
}

template <int... kPlugins>
constexpr std::array<std::array<EntryPoint, kPjrtHookCount>, kMaxPlugins> EntryPoints(
    std::integer_sequence<int, kPlugins...>) {
  return {EntryPointsOf<kPlugins>(std::make_integer_sequence<int, kPjrtHookCount>())...};
}

constexpr auto kEntryPoints = EntryPoints(std::make_integer_sequence<int, kMaxPlugins>());

const pjrt::Api* Refuse(const pjrt::Api* api, const std::string& why) {
  PrintMessage("hbmprof: a PJRT plugin is not recorded: ", why);
  return api;
}

// Returns the reason why the table cannot be wrapped; an empty string if it can be wrapped.
std::string WhyUnsupported(const pjrt::Api* api) {
  if (api == nullptr) return "its table is null";
  if (api->struct_size < sizeof(pjrt::Api) || api->struct_size > kMaxTableBytes) {
    return "its table says that it has " + std::to_string(api->struct_size) + " bytes";
  }
  if (api->version.major == pjrt::kMajorVersion && api->version.minor >= pjrt::kLeastMinorVersion) return {};
  return "its PJRT API is version " + std::to_string(api->version.major) + "." + std::to_string(api->version.minor) +
         "; hbmprof supports 0.57 and later minor versions";
}

struct Wrapping {
  const pjrt::Api* original = nullptr;
  const pjrt::Api* wrapped = nullptr;
};

// Held while tables are compared and copied, never during a call that can wait for another thread.
Mutex wrappings_mutex;
Wrapping wrappings[kMaxPlugins] ABSL_GUARDED_BY(wrappings_mutex);
size_t wrapping_count ABSL_GUARDED_BY(wrappings_mutex) = 0;

const pjrt::Api* FindWrapped(const pjrt::Api* api) ABSL_EXCLUSIVE_LOCKS_REQUIRED(wrappings_mutex) {
  for (size_t i = 0; i < wrapping_count; ++i) {
    if (wrappings[i].original == api || wrappings[i].wrapped == api) return wrappings[i].wrapped;
  }
  return nullptr;
}

const pjrt::Api* WrapTable(const pjrt::Api* api) {
  if (const std::string why = WhyUnsupported(api); !why.empty()) return Refuse(api, why);
  {
    MutexLock lock(wrappings_mutex);
    if (const pjrt::Api* wrapped = FindWrapped(api)) return wrapped;
  }
  auto tracked = std::make_unique<TrackedPlugin>(api, Profiler::Default());
  // The whole table, with the slots that a newer version has appended.
  auto table = std::make_unique<char[]>(api->struct_size);
  std::memcpy(table.get(), api, api->struct_size);
  {
    MutexLock lock(wrappings_mutex);
    // Another thread can have wrapped the table meanwhile.
    if (const pjrt::Api* wrapped = FindWrapped(api)) return wrapped;
    if (wrapping_count < kMaxPlugins) {
      for (int hook = 0; hook < kPjrtHookCount; ++hook) {
        const int slot = kPjrtHooks[hook].slot;
        if (!tracked->plugin.Has(slot)) continue;
        const EntryPoint entry = kEntryPoints[wrapping_count][static_cast<size_t>(hook)];
        std::memcpy(table.get() + pjrt::OffsetOf(slot), &entry, sizeof(entry));
      }
      tracked_plugins[wrapping_count].store(tracked.release(), std::memory_order_release);
      // Never freed: the program may keep the table for the life of the process.
      const auto* const wrapped = reinterpret_cast<const pjrt::Api*>(table.release());
      wrappings[wrapping_count++] = {api, wrapped};
      return wrapped;
    }
  }
  return Refuse(
      api, std::to_string(kMaxPlugins) + " other plugins of this process are recorded already, which is the maximum");
}

}  // namespace
}  // namespace hbmprof::internal

namespace hbmprof::pjrt {

const PJRT_Api* Wrap(const PJRT_Api* api) {
  const auto* const original = reinterpret_cast<const internal::pjrt::Api*>(api);
  const internal::pjrt::Api* wrapped = original;
  if (internal::IsOff()) return api;
  if (!internal::TryRun([&] { wrapped = internal::WrapTable(original); })) {
    internal::PrintMessage("hbmprof: a PJRT plugin is not recorded: the host has no memory");
  }
  return reinterpret_cast<const PJRT_Api*>(wrapped);
}

}  // namespace hbmprof::pjrt
