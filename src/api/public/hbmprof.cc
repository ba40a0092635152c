#include "hbmprof/hbmprof.h"

#include <new>
#include <string>

#include "hbmprof/pprof.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/base/fork.h"
#include "src/core/injected/injected.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof {

namespace {

absl::Status HostMemoryExhausted() {
  return absl::ResourceExhaustedError("no profile: the host has no memory to build it");
}

}  // namespace

absl::Status save_device_memory_profile(std::string_view path) try {
  if (internal::IsOff()) return absl::FailedPreconditionError(internal::kOffText);
  if (const auto* const injected = internal::InjectedOfDefault()) return injected->SaveProfile(path);
  const internal::ScopedMark mark(path);
  const Snapshot snapshot = Profiler::Default().TakeSnapshot();
  internal::ProfilePlace place;
  place.pattern = std::string(path);
  const absl::Status status = internal::WriteProfile(SerializePprof(snapshot, &ElfSymbolizer()), place).status();
  if (status.ok()) internal::RememberProfile(snapshot);
  return status;
} catch (const std::bad_alloc&) {
  return HostMemoryExhausted();
}

void SetCounter(std::string_view name, int64_t value) try {
  Profiler::Default().SetCounter(name, value);
} catch (const std::bad_alloc&) {
  // The counter keeps its previous value, if it has one.
}

absl::StatusOr<std::string> device_memory_profile(const PprofOptions& options) try {
  if (internal::IsOff()) return absl::FailedPreconditionError(internal::kOffText);
  if (const auto* const injected = internal::InjectedOfDefault()) return injected->Profile(options);
  return SerializePprof(Profiler::Default().TakeSnapshot(), &ElfSymbolizer(), options);
} catch (const std::bad_alloc&) {
  return HostMemoryExhausted();
}

}  // namespace hbmprof
