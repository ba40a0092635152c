// What symbolize found, kept for the next time: a profile per build id in $XDG_CACHE_HOME/hbmprof (else
// ~/.cache/hbmprof), which says for each place in the file what stands there. A build id names contents, so nothing in
// it ever becomes wrong; deleting it costs time only.
#ifndef HBMPROF_SRC_TOOL_SYMBOL_CACHE_H_
#define HBMPROF_SRC_TOOL_SYMBOL_CACHE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/tool/dwarf_symbolizer.h"

namespace hbmprof::tool {

// A place in a module's file: its offset, and where the mapping that covers it starts.
using CodePlace = std::pair<uint64_t, uint64_t>;
using FramesByPlace = std::map<CodePlace, std::vector<SourceFrame>>;

class SymbolCache {
 public:
  // `enabled` false: knows nothing and keeps nothing. So too where there is no home folder.
  explicit SymbolCache(bool enabled);

  // Fills in the frames of every place in `frames`, if all of them are known; else changes nothing and returns false.
  bool Load(const std::string& build_id, FramesByPlace& frames) const;
  // Adds to what is known. A failure is no concern of the user's: it is only slower next time.
  void Store(const std::string& build_id, const FramesByPlace& frames) const;

 private:
  FramesByPlace ReadAll(const std::string& build_id) const;
  std::string PathOf(const std::string& build_id) const;

  std::string folder_;  // "": none
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOL_CACHE_H_
