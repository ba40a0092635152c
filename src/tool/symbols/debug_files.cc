#include "src/tool/symbols/debug_files.h"

#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <libelf.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "src/base/descriptor.h"
#include "src/base/regular_file.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace fs = std::filesystem;
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Returns whether `dir` is on a file system of the kernel, such as /proc. Such a file system has no debug files, and
// reading some of its files blocks.
bool IsKernelFileSystem(const fs::path& dir) {
  struct statfs info;
  if (statfs(dir.c_str(), &info) != 0) return false;
  for (const auto magic : {PROC_SUPER_MAGIC, SYSFS_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC, CGROUP2_SUPER_MAGIC}) {
    if (static_cast<unsigned long>(info.f_type) == static_cast<unsigned long>(magic)) return true;
  }
  return false;
}

}  // namespace

std::string CacheFolder() {
  if (std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) return cache;
  const std::string home = Environment("HOME");
  return home.empty() ? "" : home + "/.cache";
}

std::string BuildIdOf(const std::string& path) {
  elf_version(EV_CURRENT);
  const internal::FileDescriptor file(internal::OpenRegularFile(path.c_str(), O_RDONLY));
  if (file.get() < 0) return "";
  std::string text;
  if (Elf* elf = elf_begin(file.get(), ELF_C_READ_MMAP, nullptr); elf != nullptr) {
    const void* bytes = nullptr;
    const ssize_t size = elf_kind(elf) == ELF_K_ELF ? dwelf_elf_gnu_build_id(elf, &bytes) : 0;
    if (size > 0) text = absl::BytesToHexString({static_cast<const char*>(bytes), static_cast<size_t>(size)});
    elf_end(elf);
  }
  return text;
}

// `max_entries` limits the search: a folder of debug files has thousands of entries, but the root folder of a system
// has millions.
DebugFiles::DebugFiles(std::vector<std::string> directories, size_t max_entries)
    : directories_(std::move(directories)), max_entries_(max_entries) {
  if (const std::string cache = Environment("DEBUGINFOD_CACHE_PATH"); !cache.empty()) caches_.push_back(cache);
  if (const std::string cache = CacheFolder(); !cache.empty()) caches_.push_back(cache + "/debuginfod_client");
  caches_.push_back("/usr/lib/debug");
}

std::vector<std::string> DebugFiles::Candidates(const std::string& path, const std::string& build_id) {
  std::vector<std::string> files;
  const auto add = [&](const fs::path& file) {
    const std::string text = file.lexically_normal().string();
    if (IsFile(file) && !absl::c_linear_search(files, text)) files.push_back(text);
  };
  const auto add_by_build_id = [&](const fs::path& dir) {
    if (build_id.size() < 3) return;
    add(dir / ".build-id" / build_id.substr(0, 2) / (build_id.substr(2) + ".debug"));
    add(dir / build_id / "debuginfo");
    add(dir / build_id / "executable");
  };
  const fs::path module(path);
  for (const std::string& dir : directories_) add_by_build_id(dir);
  for (const std::string& dir : directories_) {
    for (const fs::path& file : {fs::path(dir + "/" + path), fs::path(dir) / module.filename()}) {
      add(file.string() + ".debug");
      add(file);
    }
  }
  if (!build_id.empty() && !directories_.empty()) {
    const internal::MutexLock hold(mutex_);
    const bool is_first = !std::exchange(indexed_, true);
    for (size_t i = 0; is_first && i < directories_.size(); ++i) Search(directories_[i]);
    for (const std::string& file : by_build_id_[build_id]) add(file);
  }
  for (const std::string& cache : caches_) add_by_build_id(cache);
  if (!path.empty() && path.front() == '/') {
    add("/usr/lib/debug" + path + ".debug");
    add(path + ".debug");
    add(module.parent_path() / ".debug" / (module.filename().string() + ".debug"));
    add(path);
  }
  return files;
}

void DebugFiles::Search(const std::string& dir) {
  std::error_code error;
  fs::recursive_directory_iterator entry(dir, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (++entries_ > max_entries_) {
      problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: there are more than ", max_entries_,
                              " files and folders; name the folder that has the debug files"));
      return;
    }
    std::error_code unknown;
    if (entry->is_directory(unknown)) {
      if (IsKernelFileSystem(entry->path())) entry.disable_recursion_pending();
      continue;
    }
    if (!IsFile(entry->path())) continue;
    const std::string id = BuildIdOf(entry->path().string());
    if (!id.empty()) by_build_id_[id].push_back(entry->path().string());
  }
  if (error) problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: ", error.message()));
}

std::vector<std::string> DebugFiles::Problems() {
  const internal::MutexLock hold(mutex_);
  return problems_;
}

}  // namespace hbmprof::tool
