#include "src/tool/symbols/debug_files.h"

#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <libelf.h>

#include <filesystem>

#include "absl/strings/escaping.h"
#include "src/base/descriptor.h"
#include "src/base/regular_file.h"

namespace hbmprof::tool {
namespace fs = std::filesystem;
namespace {

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

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
DebugFiles::DebugFiles(const std::vector<std::string>& directories, size_t max_entries) {
  for (const std::string& dir : directories) Search(dir, max_entries);
}

std::vector<std::string> DebugFiles::Candidates(const std::string& path, const std::string& build_id) const {
  std::vector<std::string> files;
  if (build_id.size() >= 3) {
    files = ValueOr(by_build_id_, build_id);
    const std::string installed =
        Cat("/usr/lib/debug/.build-id/", build_id.substr(0, 2), "/", build_id.substr(2), ".debug");
    if (IsFile(installed)) files.push_back(installed);
  }
  if (!path.empty() && path.front() == '/' && IsFile(path)) files.push_back(path);
  return files;
}

void DebugFiles::Search(const std::string& dir, size_t max_entries) {
  std::error_code error;
  fs::recursive_directory_iterator entry(dir, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (++entries_ > max_entries) {
      problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: there are more than ", max_entries,
                              " files and folders; name the folder that has the debug files"));
      return;
    }
    if (!IsFile(entry->path())) continue;
    const std::string id = BuildIdOf(entry->path().string());
    if (!id.empty()) by_build_id_[id].push_back(entry->path().string());
  }
  if (error) problems_.push_back(Cat("--debug-dir ", dir, ": not searched to the end: ", error.message()));
}

}  // namespace hbmprof::tool
