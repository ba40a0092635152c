// Finds the file that has a module's symbols: by its build id, in the folders that the user names and in those where
// systems keep such files.
// Not here: reading it (dwarf_symbolizer.h).
#ifndef HBMPROF_SRC_TOOL_DEBUG_FILES_H_
#define HBMPROF_SRC_TOOL_DEBUG_FILES_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "src/base/mutex.h"

namespace hbmprof::tool {

class DebugFiles {
 public:
  // `directories` come first: each may hold files by build id (.build-id/ab/cdef.debug, or debuginfod's
  // abcdef/debuginfo and abcdef/executable), by path, or anywhere below it. After them debuginfod's cache
  // ($DEBUGINFOD_CACHE_PATH, $XDG_CACHE_HOME, ~/.cache), /usr/lib/debug, and the module's own path.
  // At most `max_entries` files and folders below `directories` are looked at.
  static constexpr size_t kMaxEntries = 200000;
  explicit DebugFiles(std::vector<std::string> directories, size_t max_entries = kMaxEntries);

  // The readable files that may belong to the module, best first, each once. A file with a different build id is among
  // them only if it has the module's name: so that the user learns of it. Any thread.
  std::vector<std::string> Candidates(const std::string& path, const std::string& build_id);

  // Which of the user's folders were not searched to the end, and why; one line each. Any thread.
  std::vector<std::string> Problems();

 private:
  // Every ELF file below the user's folders, by build id: read once, when a conventional place did not have the file.
  const std::map<std::string, std::vector<std::string>>& Index() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::string> directories_;
  const size_t max_entries_;
  std::vector<std::string> caches_;
  // Adds the files below `dir` to the index.
  void Search(const std::string& dir) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  internal::Mutex mutex_;
  bool indexed_ ABSL_GUARDED_BY(mutex_) = false;
  size_t entries_ ABSL_GUARDED_BY(mutex_) = 0;  // seen so far
  std::map<std::string, std::vector<std::string>> by_build_id_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
};

// Lower-case hex; "" if the file is no ELF file or has none.
std::string BuildIdOf(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_DEBUG_FILES_H_
