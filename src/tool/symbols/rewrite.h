// Frames in profiles: writes them into a profile, and keeps those of each build id in a profile, the cache.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_

#include "src/tool/profile/profile_reader.h"
#include "src/tool/symbols/dwarf_symbolizer.h"

namespace hbmprof::tool {

// Replaces the lines of each location by the frames that `frames_of` returns for it, unless it returns null or none.
// Removes unused functions and strings, so that ids are dense.
using FramesOf =
    std::function<const std::vector<SourceFrame>*(const pprof::Location& location, const pprof::Mapping& mapping)>;
void WriteFrames(const FramesOf& frames_of, RawProfile& profile);

// A position in a module's file: its offset, and the offset at which the mapping that covers it starts.
using CodePosition = std::pair<uint64_t, uint64_t>;
using FramesByPosition = std::map<CodePosition, std::vector<SourceFrame>>;

// The cache of `hbmprof symbolize`: one profile per build id in $XDG_CACHE_HOME/hbmprof (else ~/.cache/hbmprof), with
// the frames of each known position in the module's file. A build id identifies the contents of a file, so entries
// never become wrong. If the cache is deleted, the next run is only slower.
//
// Fills in the frames of every position in `frames` if all of them are in the cache. Else changes nothing and returns
// false.
bool LoadFrames(const std::string& build_id, FramesByPosition& frames);
// Adds `frames` to the cache. Ignores failures.
void StoreFrames(const std::string& build_id, const FramesByPosition& frames);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
