// Snapshots of PyTorch's memory, read as recordings: what torch.cuda.memory._dump_snapshot writes (docs/torch.md).
#ifndef HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_
#define HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "src/tool/reader/reader.h"

namespace hbmprof::tool {

// Opens a recording, or a snapshot of PyTorch as a recording: its end is the state of the snapshot, and its events are
// those of the trace, which are held in memory. Errors: those of RecordingReader::Open and ReadPickle.
absl::StatusOr<std::unique_ptr<internal::RecordingReader>> OpenRecordingFile(const std::string& path);
// The same, for a subcommand that takes no other sources. If there is no file `path`, the error says so.
absl::StatusOr<std::unique_ptr<internal::RecordingReader>> OpenWholeRecording(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_
