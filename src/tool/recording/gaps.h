// What a recording lacks.
#ifndef HBMPROF_SRC_TOOL_RECORDING_GAPS_H_
#define HBMPROF_SRC_TOOL_RECORDING_GAPS_H_

#include "src/export/recording.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns what the recording lacks, one message for each: it is damaged or was not ended, events were lost, or its list
// of the buffers that were live at its start is incomplete.
std::vector<std::string> GapsOf(const internal::RecordingReader& recording);
// Prints each of them as a warning to stderr.
void WarnOfGaps(const std::string& command, const std::string& path, const internal::RecordingReader& recording);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_GAPS_H_
