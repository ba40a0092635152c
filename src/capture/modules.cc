#include "src/capture/modules.h"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string>
#include <utility>

#include "src/base/descriptor.h"
#include "src/base/lazy.h"
#include "src/base/lines.h"
#include "src/base/loaded_objects.h"
#include "src/base/mutex.h"
#include "src/capture/objects.h"

namespace hbmprof::internal {
namespace {

// Set when this code is loaded, because later the process may have another root directory, or may not be allowed to
// read the link.
char main_program_path[PATH_MAX];

[[gnu::constructor(101)]] void ReadMainProgramPath() {
  const ssize_t length = readlink("/proc/self/exe", main_program_path, sizeof(main_program_path) - 1);
  main_program_path[std::max(length, ssize_t{0})] = '\0';
}

void AddObject(const dl_phdr_info* info, std::vector<Snapshot::Module>* modules) {
  // The first object listed is the main program, which the dynamic linker leaves unnamed.
  const bool is_main = modules->empty();
  const std::string path = is_main ? main_program_path : info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const BuildId found = FindBuildId(info->dlpi_phdr, info->dlpi_phnum, info->dlpi_addr);
  std::string build_id;
  for (uint32_t n = 0; n < found.bytes; ++n) {
    build_id += "0123456789abcdef"[found.id[n] >> 4];
    build_id += "0123456789abcdef"[found.id[n] & 15];
  }
  const unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    Snapshot::Module module;
    module.start = info->dlpi_addr + header.p_vaddr;
    module.limit = module.start + header.p_memsz;
    module.offset = header.p_offset;
    module.bias = info->dlpi_addr;
    module.path = !is_main && vdso >= module.start && vdso < module.limit ? "[vdso]" : path;
    module.build_id = build_id;
    modules->push_back(std::move(module));
  }
}

// The segments that earlier calls returned.
class History {
 public:
  // `modules` has the segments that are loaded now, which do not overlap. Adds the segments of earlier calls that do
  // not overlap them, and stores the result for later calls.
  void Merge(std::vector<Snapshot::Module>* modules) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const auto loaded = static_cast<ptrdiff_t>(modules->size());
    for (const Snapshot::Module& old : listed_) {
      const auto overlaps = [&old](const auto& other) { return other.start < old.limit && old.start < other.limit; };
      if (std::none_of(modules->begin(), modules->begin() + loaded, overlaps)) modules->push_back(old);
    }
    std::vector<Snapshot::Module> copy = *modules;
    listed_.swap(copy);
  }

 private:
  Mutex mutex_;
  std::vector<Snapshot::Module> listed_ ABSL_GUARDED_BY(mutex_);
};
Lazy<History> module_history;  // never destroyed, because profiles are also written while the process exits

}  // namespace

std::vector<Snapshot::Module> LoadedModules() {
  std::vector<Snapshot::Module> modules;
  ptrdiff_t of_main_program = 0;
  ForEachLoadedObject([&](const dl_phdr_info& object) {
    AddObject(&object, &modules);
    if (of_main_program == 0) of_main_program = static_cast<ptrdiff_t>(modules.size());
  });
  module_history.Get().Merge(&modules);
  std::sort(modules.begin() + of_main_program, modules.end(),
            [](const Snapshot::Module& a, const Snapshot::Module& b) { return a.start < b.start; });
  return modules;
}

}  // namespace hbmprof::internal
