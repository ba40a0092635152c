// Finds the file with a module's symbols by its build id. dwarf_symbolizer.h reads the file.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

class DebugFiles {
 public:
  // Reads the build ids of all files below `directories`, in any layout. Visits at most `max_entries` files and
  // folders.
  explicit DebugFiles(const std::vector<std::string>& directories, size_t max_entries = 200000);

  // Returns the files that may belong to the module, best first: those below the directories, the debug file in
  // /usr/lib/debug, and the module's own path, which can have a different build id. Thread-safe.
  std::vector<std::string> Candidates(const std::string& path, const std::string& build_id) const;

  // One line for each directory that was not searched completely, with the reason.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Search(const std::string& dir, size_t max_entries);

  size_t entries_ = 0;                                           // seen so far
  std::map<std::string, std::vector<std::string>> by_build_id_;  // below the directories
  std::vector<std::string> problems_;
};

// Returns the build id in lower-case hex; "" if the file is not an ELF file or has none.
std::string BuildIdOf(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_DEBUG_FILES_H_
