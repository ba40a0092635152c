// Finds the file with a module's symbols by its build id, in the user's folders and in the standard folders.
// dwarf_symbolizer.h reads the file.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_

#include "src/base/mutex.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns the folder of the user's caches: $XDG_CACHE_HOME, else $HOME/.cache; "" if neither variable is set.
std::string CacheFolder();

class DebugFiles {
 public:
  // Searches `directories` first. Each of them may contain files by build id (.build-id/ab/cdef.debug, or debuginfod's
  // abcdef/debuginfo and abcdef/executable), by path, or anywhere below it. Then searches debuginfod's cache
  // ($DEBUGINFOD_CACHE_PATH, $XDG_CACHE_HOME, ~/.cache), /usr/lib/debug, and the module's own path. Visits at most
  // `max_entries` files and folders below `directories`.
  explicit DebugFiles(std::vector<std::string> directories, size_t max_entries = 200000);

  // Returns the readable files that may belong to the module, best first, each once. Includes a file with a different
  // build id only if it has the module's name, so that a message can name it. Thread-safe.
  std::vector<std::string> Candidates(const std::string& path, const std::string& build_id);

  // Returns one line for each of the user's folders that was not searched completely, with the reason. Thread-safe.
  std::vector<std::string> Problems();

 private:
  const std::vector<std::string> directories_;
  const size_t max_entries_;
  std::vector<std::string> caches_;
  // Adds the files below `dir` to the index.
  void Search(const std::string& dir) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  internal::Mutex mutex_;
  bool indexed_ ABSL_GUARDED_BY(mutex_) = false;
  size_t entries_ ABSL_GUARDED_BY(mutex_) = 0;                                           // seen so far
  std::map<std::string, std::vector<std::string>> by_build_id_ ABSL_GUARDED_BY(mutex_);  // below the user's folders
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
};

// Returns the build id in lower-case hex; "" if the file is not an ELF file or has none.
std::string BuildIdOf(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_
