// Snapshots of PyTorch's memory, the pickles that torch.cuda.memory._dump_snapshot writes (docs/torch.md): the state of
// the allocator, and the events of its trace. They are read as recordings.
#ifndef HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_
#define HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_

#include "src/tool/reader/reader.h"

namespace hbmprof::tool {

struct TorchFrame {
  uint32_t function = 0;  // number of a text
  uint32_t file = 0;      // number of a text
  int64_t line = 0;
};

struct TorchBlock {
  uint64_t address = 0;
  int64_t bytes = 0;  // that the program asked for
  uint32_t stack = 0;
  bool is_live = false;
  bool has_address = false;
  int64_t room = 0;  // bytes of the segment that belong to the block
};

struct TorchSegment {
  uint32_t device = 0;
  uint64_t address = 0;
  int64_t bytes = 0;
  uint32_t stack = 0;
  std::vector<uint32_t> blocks;  // numbers of blocks
};

enum class TorchAction : uint8_t { kAlloc, kFreeRequested, kFreeCompleted, kMap, kUnmap, kOutOfMemory, kSnapshot };

struct TorchEvent {
  uint64_t address = 0;  // of kOutOfMemory: the free bytes of the device
  int64_t bytes = 0;
  int64_t time_us = 0;  // since 1970; 0: not known
  int64_t stream = 0;   // the handle of the driver
  uint32_t stack = 0;
  uint32_t metadata = 0;  // number of a text; 0: none
  TorchAction action = TorchAction::kAlloc;
};

struct TorchSnapshot {
  NumberedTexts texts;
  std::vector<TorchFrame> frames;
  NumberedLists<uint32_t> stacks;  // numbers of frames, innermost first; [0] is empty
  std::vector<TorchBlock> blocks;
  std::vector<TorchSegment> segments;
  std::vector<TorchEvent> events;
  std::vector<uint32_t> state;                // numbers of the segments of the state
  std::vector<std::vector<uint32_t>> traces;  // by device: numbers of events, in their order
  int64_t left_out = 0;                       // events with an action that is not known
  uint32_t settings = 0;                      // number of the text of PYTORCH_CUDA_ALLOC_CONF
};

// Returns whether `path` is a regular file that begins as a pickle of protocol 2 to 5, or is a gzip file of one.
bool IsPickle(const std::string& path);
bool BeginsAsPickle(std::string_view bytes);

// Reads the file `path`, which can be a gzip file, into `snapshot`, which must be empty. The time is proportional to
// the size of the file. The memory is that of the snapshot, and 16 bytes for each object that the pickle numbers. Shows
// progress on stderr if that is a terminal.
//
// A pickle is a program for a stack machine. This machine has no instructions other than those for texts, numbers,
// True, False, None, lists, tuples and dictionaries: it cannot import or call anything. Errors, with the path:
// kNotFound, kPermissionDenied; kInvalidArgument: another instruction, wrong bytes, or a pickle that is not a snapshot
// of PyTorch; kResourceExhausted: the contents exceed a limit (docs/limits.md); kInternal: any other error of the
// system.
absl::Status ReadPickle(const std::string& path, TorchSnapshot* snapshot);

// Opens a recording, or a snapshot of PyTorch as a recording: its end is the state of the snapshot, and its events are
// those of the trace, which are held in memory. If `snapshot` is not null, it must be empty; it is filled if the file
// is one. The size of the file counts for the memory limit. Errors: those of RecordingReader::Open and ReadPickle.
absl::StatusOr<std::unique_ptr<internal::RecordingReader>> OpenRecordingFile(const std::string& path,
                                                                             TorchSnapshot* snapshot = nullptr);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TORCH_TORCH_SNAPSHOT_H_
