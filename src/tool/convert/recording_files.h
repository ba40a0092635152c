// Files for other viewers of memory over time, made from a recording. docs/timeline.md describes them.
//
// All functions read the events from the beginning, one or more times. They keep the live buffers in memory, but not
// the events. One thread at a time. Errors: those of `output`; kResourceExhausted if the viewer's format cannot hold
// the recording.
#ifndef HBMPROF_SRC_TOOL_CONVERT_RECORDING_FILES_H_
#define HBMPROF_SRC_TOOL_CONVERT_RECORDING_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/atomic_file.h"
#include "src/export/recording.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/progress.h"

namespace hbmprof::tool {

// XProf's XSpace (HOST.xplane.pb), for its tool Memory Profile.
absl::Status WriteXplane(internal::RecordingReader& recording, const RecordedStacks& stacks,
                         internal::FileOutput& output, Progress& progress);
// Perfetto's trace: counters, tags as slices, failed allocations, and heap profiles at the marks and at the peaks.
absl::Status WritePerfetto(internal::RecordingReader& recording, const RecordedStacks& stacks,
                           internal::FileOutput& output, Progress& progress);
// The snapshot of PyTorch's memory_viz: a pickle of protocol 2.
absl::Status WriteMemoryViz(internal::RecordingReader& recording, const RecordedStacks& stacks,
                            internal::FileOutput& output, Progress& progress);

// The formats of `hbmprof convert --to` that are made from a recording only.
bool IsRecordingFormat(const std::string& name);
std::vector<std::string> RecordingFormats();
// Writes a recording, the only element of `files`, to `output`: in a format of RecordingFormats, or as a table
// (table.h). `output`: as for WriteOutput. `known`: regular expressions for further libraries (own_code.h). Prints a
// warning to stderr if the recording is incomplete. Returns the exit code. Errors: those of RecordingReader::Open,
// KnownLibraries::Make, CheckIsNoInput and WriteOutput; kInvalidArgument if `files` does not have one element, if
// `output` is empty and the format is not a table, or if `output` is "-" and the format needs a regular file.
absl::StatusOr<int> ConvertRecording(const std::vector<std::string>& files, const std::string& format,
                                     const std::string& output, const std::vector<std::string>& known);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONVERT_RECORDING_FILES_H_
