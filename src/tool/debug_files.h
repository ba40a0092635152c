// Finds the file that has a module's symbols: by its build id, in the folders that the user names and in those where
// systems keep such files.
// Not here: reading it (dwarf_symbolizer.h).
#ifndef HBMPROF_SRC_TOOL_DEBUG_FILES_H_
#define HBMPROF_SRC_TOOL_DEBUG_FILES_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hbmprof::tool {

class DebugFiles {
 public:
  // `directories` come first: each may hold files by build id (.build-id/ab/cdef.debug, or debuginfod's
  // abcdef/debuginfo and abcdef/executable), by path, or anywhere below it. After them debuginfod's cache
  // ($DEBUGINFOD_CACHE_PATH, $XDG_CACHE_HOME, ~/.cache), /usr/lib/debug, and the module's own path.
  explicit DebugFiles(std::vector<std::string> directories);

  // The readable files that may belong to the module, best first, each once. A file with a different build id is among
  // them only if it has the module's name: so that the user learns of it. Any thread.
  std::vector<std::string> Candidates(const std::string& path, const std::string& build_id);

 private:
  // Every ELF file below the user's folders, by build id: read once, when a conventional place did not have the file.
  const std::map<std::string, std::vector<std::string>>& Index();

  const std::vector<std::string> directories_;
  std::vector<std::string> caches_;
  std::mutex mutex_;
  bool indexed_ = false;
  std::map<std::string, std::vector<std::string>> by_build_id_;
};

// Lower-case hex; "" if the file is no ELF file or has none.
std::string BuildIdOf(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_DEBUG_FILES_H_
