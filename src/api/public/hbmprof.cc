#include "hbmprof/hbmprof.h"

#include <new>

#include "hbmprof/pprof.h"
#include "src/api/output/out_of_memory.h"
#include "src/api/output/output_file.h"
#include "src/api/public/default_profiler.h"
#include "src/api/recording/recorder.h"
#include "src/api/recording/recording.h"
#include "src/base/fork.h"
#include "src/core/joined/joined.h"

namespace hbmprof {

namespace {

absl::Status HostMemoryExhausted() {
  return absl::ResourceExhaustedError("no profile: the host has no memory to build it");
}

const internal::InjectedProfiler* JoinedByDefault() { return internal::ProfilerAccess::JoinedBy(Profiler::Default()); }

}  // namespace

absl::Status save_device_memory_profile(std::string_view path) try {
  if (internal::IsOff()) return internal::OffStatus();
  if (const auto* const joined = JoinedByDefault()) return internal::Joined(*joined).SaveProfile(path);
  const internal::ScopedMark mark(path);
  const Snapshot snapshot = Profiler::Default().TakeSnapshot();
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, &ElfSymbolizer());
  if (!bytes.ok()) return bytes.status();
  std::string written;
  const absl::Status status =
      internal::WriteToPattern(path, Profiler::OptionsOfDefault().output_mode, *bytes, &written);
  if (!status.ok()) return status;
  internal::RememberProfile(snapshot);
  internal::SaveFlightBeside(written);
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
  if (internal::IsOff()) return internal::OffStatus();
  if (const auto* const joined = JoinedByDefault()) return internal::Joined(*joined).Profile(options);
  return SerializePprof(Profiler::Default().TakeSnapshot(), &ElfSymbolizer(), options);
} catch (const std::bad_alloc&) {
  return HostMemoryExhausted();
}

}  // namespace hbmprof
