// libhbmprof_pjrt.so: a PJRT plugin that loads another plugin and returns its wrapped table (hbmprof/pjrt.h), for
// programs that load a plugin by its path. Exports GetPjrtApi and the C interface (hbmprof/c_api.h).
//
// The other plugin is the one that HBMPROF_PJRT_PLUGIN names; without that variable it is libtpu, in the directories
// where JAX and pytorch/xla search for it. The other plugin is never unloaded.
//
// A program may use the result of GetPjrtApi without a check. So if there is no plugin, the result is a table in which
// every function returns an error with the reason.
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hbmprof/pjrt.h"
#include "src/backends/pjrt/abi.h"
#include "src/base/loaded_objects.h"
#include "src/base/lock_free_lazy.h"
#include "src/base/message.h"
#include "src/base/try_run.h"
#include "src/core/injected/injected.h"

namespace hbmprof::internal::pjrt {

// The error that the table without a plugin returns. There is one object, which is never destroyed.
struct Error {};

}  // namespace hbmprof::internal::pjrt

extern "C" [[gnu::visibility("default")]] const PJRT_Api* GetPjrtApi();

namespace hbmprof::internal {
namespace {

using GetApi = const PJRT_Api* (*)();

// This library does not use libhbmprof_gpu.so. The buffers of a plugin lie in memory that the plugin got from the
// driver, at addresses that the handles do not show. In one profiler these bytes would count twice.
[[gnu::constructor(101)]] void KeepToOwnProfiler() { StaySeparate(); }

// The result of GetPjrtApi, and the reason if it is not the table of a plugin.
struct Answer {
  const PJRT_Api* api = nullptr;
  std::string refusal;
};
LockFreeLazy<Answer> answer;

std::string_view Refusal() {
  const Answer* made = answer.Get([]() -> std::unique_ptr<Answer> { return nullptr; });
  return made == nullptr || made->refusal.empty()
             ? "hbmprof: libhbmprof_pjrt.so has no PJRT plugin to wrap: the host has no memory"
             : std::string_view(made->refusal);
}

pjrt::Error the_error;

pjrt::Error* RefuseCall(void*) { return &the_error; }
void DestroyError(pjrt::ErrorDestroyArgs*) {}
void ErrorText(pjrt::ErrorMessageArgs* args) {
  args->message = Refusal().data();
  args->message_size = Refusal().size();
}
pjrt::Error* ErrorCode(pjrt::ErrorGetCodeArgs* args) {
  args->code = pjrt::kErrorNotFound;
  return nullptr;
}

// A table with the number of slots of the newest known version. Its version is the oldest version that has the slots in
// this order.
struct RefusingTable {
  static constexpr int kSlots = 138;
  pjrt::Api api = {pjrt::OffsetOf(kSlots), nullptr, {24, nullptr, pjrt::kMajorVersion, pjrt::kLeastMinorVersion}};
  std::array<void*, kSlots> slots;

  RefusingTable() {
    slots.fill(reinterpret_cast<void*>(&RefuseCall));
    slots[pjrt::kErrorDestroy] = reinterpret_cast<void*>(&DestroyError);
    slots[pjrt::kErrorMessage] = reinterpret_cast<void*>(&ErrorText);
    slots[pjrt::kErrorGetCode] = reinterpret_cast<void*>(&ErrorCode);
  }
};
// Constructed when this library is loaded, before the program can call it.
const RefusingTable refusing_table;
const PJRT_Api* RefusingApi() { return reinterpret_cast<const PJRT_Api*>(&refusing_table.api); }

std::unique_ptr<Answer> Refuse(const std::string& why) {
  return std::make_unique<Answer>(
      Answer{RefusingApi(), "hbmprof: libhbmprof_pjrt.so has no PJRT plugin to wrap: " + why});
}

std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : std::string(resolved);
}

std::string OwnPath() {
  Dl_info info;
  const bool found = dladdr(reinterpret_cast<void*>(&GetPjrtApi), &info) != 0 && info.dli_fname != nullptr;
  return found ? RealPath(info.dli_fname) : std::string();
}

// Returns the folders of Python packages from which frameworks are loaded into this process. The package `libtpu` would
// be in one of them.
std::vector<std::string> PythonPackageFolders() {
  std::vector<std::string> folders;
  ForEachLoadedObject([&folders](const dl_phdr_info& object) {
    const std::string path = object.dlpi_name == nullptr ? "" : object.dlpi_name;
    for (const char* package : {"/jaxlib/", "/torch_xla/", "/_XLAC"}) {
      const size_t at = path.find(package);
      if (at == std::string::npos) continue;
      const std::string folder = path.substr(0, at + 1);
      if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
    }
  });
  return folders;
}

struct Loaded {
  void* library = nullptr;
  std::string path;
  std::string problem;  // of the last attempt
};

bool Load(const std::string& path, Loaded* loaded) {
  loaded->path = path;
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {  // dlopen would wait for the writer of a pipe
    loaded->problem = path + " is not a regular file";
    return false;
  }
  loaded->library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (loaded->library == nullptr) {
    const char* const reason = dlerror();
    loaded->problem = reason == nullptr ? "cannot load " + path : reason;
  }
  return loaded->library != nullptr;
}

Loaded FindPlugin() {
  Loaded loaded;
  const char* const named = secure_getenv("HBMPROF_PJRT_PLUGIN");
  if (named != nullptr && *named != '\0') {
    if (!Load(named, &loaded)) loaded.problem = "HBMPROF_PJRT_PLUGIN: " + loaded.problem;
    return loaded;
  }
  // These variables name this library itself if it is used in place of libtpu.
  const std::string own = OwnPath();
  for (const char* variable : {"TPU_LIBRARY_PATH", "PTXLA_TPU_LIBRARY_PATH"}) {
    const char* const path = secure_getenv(variable);
    if (path != nullptr && *path != '\0' && RealPath(path) != own && Load(path, &loaded)) return loaded;
  }
  for (const std::string& folder : PythonPackageFolders()) {
    if (Load(folder + "libtpu/libtpu.so", &loaded)) return loaded;
  }
  if (!Load("libtpu.so", &loaded)) {
    loaded.problem = "set HBMPROF_PJRT_PLUGIN to the path of one (libtpu was searched: " + loaded.problem + ")";
  }
  return loaded;
}

// A second call would have the same result.
std::unique_ptr<Answer> WrapPlugin() {
  const Loaded plugin = FindPlugin();
  if (plugin.library == nullptr) return Refuse(plugin.problem);
  const auto get_api = reinterpret_cast<GetApi>(dlsym(plugin.library, "GetPjrtApi"));
  if (get_api == nullptr) return Refuse(plugin.path + " is not a PJRT plugin: it has no function GetPjrtApi");
  if (get_api == &GetPjrtApi) return Refuse(plugin.path + " is libhbmprof_pjrt.so itself");
  const PJRT_Api* const api = get_api();
  if (api == nullptr) return Refuse("GetPjrtApi of " + plugin.path + " returned null");
  return std::make_unique<Answer>(Answer{hbmprof::pjrt::Wrap(api), ""});
}

}  // namespace
}  // namespace hbmprof::internal

const PJRT_Api* GetPjrtApi() {
  using namespace hbmprof::internal;  // NOLINT
  const Answer* made = nullptr;
  bool is_first = false;
  if (!TryRun([&] { made = answer.Get(&WrapPlugin, &is_first); })) return RefusingApi();
  if (is_first && !made->refusal.empty()) PrintMessage(made->refusal);
  return made->api;
}
