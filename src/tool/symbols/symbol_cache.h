// The cache of `hbmprof symbolize`: one profile per build id in $XDG_CACHE_HOME/hbmprof (else ~/.cache/hbmprof), with
// the frames of each known position in the module's file. A build id identifies the contents of a file, so entries
// never become wrong. If the cache is deleted, the next run is only slower.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_SYMBOL_CACHE_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_SYMBOL_CACHE_H_

#include "src/tool/symbols/dwarf_symbolizer.h"

namespace hbmprof::tool {

// A position in a module's file: its offset, and the offset at which the mapping that covers it starts.
using CodePosition = std::pair<uint64_t, uint64_t>;
using FramesByPosition = std::map<CodePosition, std::vector<SourceFrame>>;

class SymbolCache {
 public:
  // If `enabled` is false or there is no home folder, the cache stays empty.
  explicit SymbolCache(bool enabled);

  // Fills in the frames of every position in `frames` if all of them are known. Else changes nothing and returns false.
  bool Load(const std::string& build_id, FramesByPosition& frames) const;
  // Adds `frames` to the cache. Ignores failures: the next run is only slower.
  void Store(const std::string& build_id, const FramesByPosition& frames) const;

 private:
  FramesByPosition ReadAll(const std::string& build_id) const;
  std::string PathOf(const std::string& build_id) const;

  std::string folder_;  // "": none
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_SYMBOL_CACHE_H_
