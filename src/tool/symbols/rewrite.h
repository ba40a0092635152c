// Frames in profiles: writes them into a profile, and keeps those of each build id in a profile, the cache.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_

#include <tuple>

#include "src/tool/profile/profile_reader.h"
#include "src/tool/symbols/dwarf_symbolizer.h"

namespace hbmprof::tool {

// Adds strings and functions to the tables of a profile, each once.
class FrameTables {
 public:
  // The profile has at least the string "".
  explicit FrameTables(pprof::Profile& message);

  int64_t Text(const std::string& text);
  // Returns the id of the function. Its strings are in the table.
  uint64_t FunctionOf(int64_t name, int64_t system_name, int64_t file, int64_t start_line);
  // Adds the frames to the lines of the location.
  void AddLines(const std::vector<SourceFrame>& frames, pprof::Location& location);

 private:
  pprof::Profile& message_;
  absl::flat_hash_map<std::string, int64_t> texts_;
  absl::flat_hash_map<std::tuple<int64_t, int64_t, int64_t, int64_t>, uint64_t> functions_;
};

// Replaces the lines of each location by the frames that `frames_of` returns for it, unless it returns null or none.
// Removes unused functions and strings, so that ids are dense. `modules`: the number of modules, for a comment.
using FramesOf =
    std::function<const std::vector<SourceFrame>*(const pprof::Location& location, const pprof::Mapping& mapping)>;
void WriteFrames(const FramesOf& frames_of, size_t modules, RawProfile& profile);

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

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
