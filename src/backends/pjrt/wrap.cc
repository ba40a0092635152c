// Wrap: a copy of a plugin's table with the hooks in their slots.
//
// A slot is a plain function without a context of its own, so each plugin needs functions of its own: the template
// below makes a set of them for each of a few plugins.
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "hbmprof/options.h"
#include "hbmprof/pjrt.h"
#include "src/backends/pjrt/hooks.h"
#include "src/base/message.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {
namespace {

constexpr int kMostPlugins = 8;
// Many times the size of any table; more is no table.
constexpr size_t kMostTableBytes = 1 << 16;

std::atomic<TrackedPlugin*> tracked_plugins[kMostPlugins];

// Where the program enters: it must stay a frame of its own.
template <int kPlugin, int kHook>
[[gnu::noinline]] pjrt::Error* Enter(void* args) {
  const Caller caller = Caller::OfThisFunction();
  return kPjrtHooks[kHook].run(*tracked_plugins[kPlugin].load(std::memory_order_acquire), caller, args);
}

using EntryPoint = pjrt::Error* (*)(void*);

template <int kPlugin, int... kHooks>
constexpr std::array<EntryPoint, kPjrtHookCount> EntryPointsOf(std::integer_sequence<int, kHooks...>) {
  return {&Enter<kPlugin, kHooks>...};
}

template <int... kPlugins>
constexpr std::array<std::array<EntryPoint, kPjrtHookCount>, kMostPlugins> EntryPoints(
    std::integer_sequence<int, kPlugins...>) {
  return {EntryPointsOf<kPlugins>(std::make_integer_sequence<int, kPjrtHookCount>())...};
}

constexpr auto kEntryPoints = EntryPoints(std::make_integer_sequence<int, kMostPlugins>());

const pjrt::Api* Refuse(const pjrt::Api* api, const std::string& why) {
  PrintMessage("hbmprof: a PJRT plugin is not recorded: ", why);
  return api;
}

// Why the table cannot be wrapped; empty if it can.
std::string Obstacle(const pjrt::Api* api) {
  if (api == nullptr) return "its table is null";
  if (api->struct_size < sizeof(pjrt::Api) || api->struct_size > kMostTableBytes) {
    return "its table says that it has " + std::to_string(api->struct_size) + " bytes";
  }
  if (api->version.major == pjrt::kMajorVersion && api->version.minor >= pjrt::kLeastMinorVersion) return {};
  return "its PJRT API is version " + std::to_string(api->version.major) + "." + std::to_string(api->version.minor) +
         ", and only 0.57 and later minor versions are known";
}

struct Wrapping {
  const pjrt::Api* original;
  const pjrt::Api* wrapped;
};

const pjrt::Api* WrapTable(const pjrt::Api* api) {
  static Mutex mutex;
  static auto* const wrappings = new std::vector<Wrapping>;  // never destroyed: tables are for ever
  if (const std::string why = Obstacle(api); !why.empty()) return Refuse(api, why);
  MutexLock lock(mutex);
  for (const Wrapping& known : *wrappings) {
    if (known.original == api || known.wrapped == api) return known.wrapped;
  }
  const size_t number = wrappings->size();
  if (number == kMostPlugins) {
    return Refuse(api, std::to_string(kMostPlugins) + " others in this process are");
  }
  // All of it, also what a newer version has appended.
  auto* const table = static_cast<char*>(::operator new(api->struct_size));
  std::memcpy(table, api, api->struct_size);
  std::vector<std::string> problems;  // the default profiler has said them
  auto* const tracked = new TrackedPlugin(api, Profiler::Default(), OptionsFromEnvironment(&problems).oom_output);
  for (int hook = 0; hook < kPjrtHookCount; ++hook) {
    const int slot = kPjrtHooks[hook].slot;
    if (!tracked->plugin.Has(slot)) continue;
    const EntryPoint entry = kEntryPoints[number][static_cast<size_t>(hook)];
    std::memcpy(table + pjrt::OffsetOf(slot), &entry, sizeof(entry));
  }
  tracked_plugins[number].store(tracked, std::memory_order_release);
  wrappings->push_back({api, reinterpret_cast<const pjrt::Api*>(table)});
  return wrappings->back().wrapped;
}

}  // namespace
}  // namespace hbmprof::internal

namespace hbmprof::pjrt {

const PJRT_Api* Wrap(const PJRT_Api* api) try {
  return reinterpret_cast<const PJRT_Api*>(internal::WrapTable(reinterpret_cast<const internal::pjrt::Api*>(api)));
} catch (const std::bad_alloc&) {
  internal::PrintMessage("hbmprof: a PJRT plugin is not recorded: the host has no memory");
  return api;
}

}  // namespace hbmprof::pjrt
