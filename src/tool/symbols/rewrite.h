// Writes frames into profiles.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_

#include "src/tool/profile/profile_reader.h"
#include "src/tool/symbols/dwarf_symbolizer.h"

namespace hbmprof::tool {

// Replaces the lines of each location by the frames that `frames_of` returns for it, unless it returns null or none.
// Functions that no line names any more stay in the profile.
using FramesOf =
    std::function<const std::vector<SourceFrame>*(const pprof::Location& location, const pprof::Mapping& mapping)>;
void WriteFrames(const FramesOf& frames_of, RawProfile& profile);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_REWRITE_H_
