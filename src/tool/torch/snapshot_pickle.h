// Reads the pickle of a snapshot of PyTorch: the file that torch.cuda.memory._dump_snapshot writes.
#ifndef HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_PICKLE_H_
#define HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_PICKLE_H_

#include <string>

#include "absl/status/status.h"
#include "src/tool/torch/snapshot_contents.h"

namespace hbmprof::tool {

// Returns whether `path` is a regular file that begins as a pickle of protocol 2 to 5, or is a gzip file of one.
bool IsPickle(const std::string& path);

// Reads the file `path`, which can be a gzip file, into `snapshot`, which must be empty. The time is proportional to
// the size of the file. The memory is that of the snapshot, and 8 bytes for each object that the pickle numbers. Shows
// progress on stderr if that is a terminal.
//
// A pickle is a program for a stack machine. This machine has no instructions other than those for texts, numbers,
// True, False, None, lists, tuples and dictionaries: it cannot import or call anything. Errors, with the path:
// kNotFound, kPermissionDenied; kInvalidArgument: another instruction, wrong bytes, or a pickle that is not a snapshot
// of PyTorch; kResourceExhausted: the contents exceed a limit (docs/limits.md); kInternal: any other error of the
// system.
absl::Status ReadPickle(const std::string& path, TorchSnapshot* snapshot);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_PICKLE_H_
