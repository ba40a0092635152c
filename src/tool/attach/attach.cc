#include "src/tool/attach/attach.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "src/protocol/attach.h"
#include "src/protocol/driver_slot.h"
#include "src/tool/attach/safe_thread.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr char kDriver[] = "libcuda.so";
constexpr char kLibrary[] = "libhbmprof_cuda.so";
// Longer than a thread that another, killed command has borrowed needs to go on.
constexpr double kSecondsForSafeThread = 10;

bool StartsWith(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

const MappedFile* Driver(const Target& target) {
  return target.Find([](std::string_view name) { return StartsWith(name, kDriver); });
}

bool HasSlot(const Target& target, uint64_t entry) {
  unsigned char code[internal::kDriverEntryBytes];
  return target.Read(entry, code, sizeof(code)) && internal::DriverSlotOf(code, entry) != 0;
}

// The number of the seccomp filters of a process or thread, by its file `status`.
int SeccompFilters(const std::string& status) {
  const std::string mode = StatusIn(status, "Seccomp");
  if (mode.empty() || mode == "0") return 0;
  if (mode == "1") return INT_MAX;                                 // only read, write and exit are allowed
  const std::string number = StatusIn(status, "Seccomp_filters");  // since Linux 5.9
  return number.empty() ? 1 : std::atoi(number.c_str());
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

bool HasInjectedLibrary(const Target& target) {
  const auto& files = target.files();
  return std::any_of(files.begin(), files.end(), [](const MappedFile& file) {
    return StartsWith(file.name, kLibrary) || StartsWith(file.name, Cat("memfd:", kLibrary));
  });
}

std::string DriverVersion(const Target& target) {
  const MappedFile* const driver = Driver(target);
  const std::string version =
      driver == nullptr ? "" : driver->name.substr(std::min(sizeof(kDriver), driver->name.size()));
  return version.find('.') == std::string::npos ? "" : version;
}

absl::Status CheckCanAttach(const Target& target) {
  const std::string process = Cat("process ", target.pid());
  const auto refuse = [&](auto... parts) { return absl::FailedPreconditionError(Cat(process, parts...)); };
  // Another command of hbmprof traces it for some milliseconds.
  for (int i = 0; i < 20 && target.Status("TracerPid") != "0"; ++i) usleep(10'000);
  if (const std::string tracer = target.Status("TracerPid"); tracer != "0") {
    return refuse(" is traced by process ", tracer, " (a debugger or strace); end that first");
  }
  if (const std::string state = target.Status("State"); !state.empty() && (state[0] == 'T' || state[0] == 't')) {
    return refuse(" is stopped; let it go on (kill -CONT ", target.pid(), ") and try again");
  }
  if (const absl::Status loader = FindLoader(target).status(); !loader.ok()) {
    return refuse(": ", std::string(loader.message()));
  }
  const MappedFile* const driver = Driver(target);
  if (driver == nullptr) {
    return refuse(" has not loaded the CUDA driver (", kDriver,
                  ".1). Attach after its first use of CUDA, or start it with `hbmprof run`");
  }
  for (const char* const name : {"cuMemAlloc_v2", "cuMemFree_v2"}) {
    const uint64_t entry = target.Symbol(*driver, name);
    if (entry != 0 && HasSlot(target, entry)) continue;
    return refuse(": its CUDA driver, ", driver->path, ", ", entry == 0 ? "lacks " : "has an unknown form of ", name,
                  ". hbmprof can attach with drivers from " HBMPROF_KNOWN_DRIVERS
                  "; start the program with `hbmprof run`");
  }
  return absl::OkStatus();
}

absl::Status CheckSystemCalls(const Target& target) {
  // The first process of a container has the filter of the container.
  const int usual = target.inner_pid() == 1 ? 1 : SeccompFilters(target.OutsidePath("/proc/1/status"));
  for (const pid_t thread : target.Threads()) {
    if (SeccompFilters(Cat("/proc/", thread, "/status")) <= usual) continue;
    return absl::FailedPreconditionError(
        Cat("process ", target.pid(),
            " has a seccomp filter of its own, which can end it at a system call that hbmprof makes in it (socket, "
            "openat, clone, pselect6, ...). Start it with `hbmprof run`; or, if the filter allows these calls or gives "
            "errors, attach with --allow-seccomp"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Attached> LoadLibrary(const Target& target, const std::string& library, const std::string& options) {
  if (absl::Status status = target.CheckIsThere(); !status.ok()) return status;
  const absl::StatusOr<LoaderFunctions> loader = FindLoader(target);
  if (!loader.ok()) return loader.status();
  Loading loading;
  loading.options = options;
  if (HasInjectedLibrary(target)) {
    loading.path = kLibrary;
    loading.is_loaded = true;
  } else if (target.SharesFiles()) {
    loading.path = library;
  } else {
    loading.contents = Contents(library);
    if (Contents(target.OutsidePath(library)) == loading.contents) loading.path = library;
  }
  absl::StatusOr<StoppedThread> thread = StopSafeThread(target, kSecondsForSafeThread);
  if (!thread.ok()) return thread.status();
  return LoadInThread(target, *std::move(thread), *loader, loading);
}

}  // namespace hbmprof::tool
