#include "src/tool/attach/attach.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "src/tool/attach/borrowed_thread.h"
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

// Whether an entry of the driver jumps through a pointer: [endbr64] cmpl $N, flag(%rip); je ...; jmp *slot(%rip).
bool HasSlot([[maybe_unused]] const Target& target, [[maybe_unused]] uint64_t entry) {
#if defined(__x86_64__)
  unsigned char code[18];
  constexpr char kEndbr64[] = "\xf3\x0f\x1e\xfa";
  if (!target.Read(entry, code, sizeof(code))) return false;
  if (std::memcmp(code, kEndbr64, 4) == 0 && !target.Read(entry + 4, code, sizeof(code))) return false;
  return code[0] == 0x81 && code[1] == 0x3d && code[10] == 0x74 && code[12] == 0xff && code[13] == 0x25;
#else
  return true;  // the library checks all entries
#endif
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
  if (const std::string tracer = target.Status("TracerPid"); tracer != "0") {
    return refuse(" is traced by process ", tracer, " (a debugger or strace); end that first");
  }
  if (const std::string state = target.Status("State"); !state.empty() && (state[0] == 'T' || state[0] == 't')) {
    return refuse(" is stopped; let it go on (kill -CONT ", target.pid(), ") and try again");
  }
  // musl's one file has the names libc.so and ld-musl-PROCESSOR.so.1.
  const auto is_musl = [](std::string_view name) {
    return name == "libc.so" || StartsWith(name, "ld-musl") || StartsWith(name, "libc.musl");
  };
  if (target.Find(is_musl) != nullptr) {
    return refuse(" uses musl as its C library; hbmprof needs the GNU C library");
  }
#if defined(__x86_64__)
  if (const absl::Status loader = FindLoader(target).status(); !loader.ok()) {
    return refuse(": ", std::string(loader.message()));
  }
#endif
  const MappedFile* const driver = Driver(target);
  if (driver == nullptr) {
    return refuse(" has not loaded the CUDA driver (", kDriver,
                  ".1). Attach after its first use of CUDA, or start it with `hbmprof run`");
  }
  for (const char* const name : {"cuMemAlloc_v2", "cuMemFree_v2"}) {
    const uint64_t entry = target.Symbol(*driver, name);
    if (entry != 0 && HasSlot(target, entry)) continue;
    return refuse(": its CUDA driver, ", driver->path, ", ", entry == 0 ? "lacks " : "has an unknown form of ", name,
                  ". hbmprof can attach with drivers from 470 to 555; start the program with `hbmprof run`");
  }
  return absl::OkStatus();
}

absl::StatusOr<Attached> LoadLibrary([[maybe_unused]] const Target& target, [[maybe_unused]] const std::string& library,
                                     [[maybe_unused]] const std::string& options) {
#if defined(__x86_64__)
  const absl::StatusOr<LoaderFunctions> loader = FindLoader(target);
  if (!loader.ok()) return loader.status();
  Loading loading;
  loading.function = "hbmprof_attach";
  loading.argument = options;
  if (target.SharesFiles()) {
    loading.path = library;
  } else {
    loading.contents = Contents(library);
    if (Contents(target.OutsidePath(library)) == loading.contents) loading.path = library;
  }
  absl::StatusOr<StoppedThread> thread = StopSafeThread(target, kSecondsForSafeThread);
  if (!thread.ok()) return thread.status();
  const absl::StatusOr<Loaded> loaded = LoadInThread(target, *std::move(thread), *loader, loading);
  if (!loaded.ok()) return loaded.status();
  return Attached{loaded->result, loaded->millis};
#else
  return absl::UnimplementedError("this hbmprof attaches on x86-64 only; start the program with `hbmprof run`");
#endif
}

}  // namespace hbmprof::tool
