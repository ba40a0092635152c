// What a snapshot of PyTorch contains: the state of the allocator, and the events of its trace. The state is held in
// memory, the events in a file: there can be many millions of them.
#ifndef HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_
#define HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/descriptor.h"

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
  uint32_t blocks = 0;  // number of a list of blocks
};

enum class TorchAction : uint8_t { kAlloc, kFreeRequested, kFreeCompleted, kMap, kUnmap, kOutOfMemory, kSnapshot };

struct TorchEvent {
  uint64_t address = 0;  // of kOutOfMemory: the free bytes of the device
  int64_t bytes = 0;
  int64_t time_us = 0;  // since 1970; 0: not known
  uint32_t stack = 0;
  uint32_t metadata = 0;  // number of a text; 0: none
  TorchAction action = TorchAction::kAlloc;
};

// Numbers of consecutive elements.
struct Run {
  uint32_t first = 0;
  uint32_t count = 0;
};
using Runs = std::vector<Run>;

// Gives numbers to texts; equal texts get the same number. Number 0 is the empty text.
class NumberedTexts {
 public:
  NumberedTexts() { Number(""); }
  uint32_t Number(std::string_view text) {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) return found->second;
    texts_.emplace_back(text);
    numbers_.emplace(texts_.back(), static_cast<uint32_t>(texts_.size() - 1));
    return static_cast<uint32_t>(texts_.size() - 1);
  }
  const std::string& text(uint32_t number) const { return texts_[number]; }

 private:
  std::deque<std::string> texts_;  // whose elements do not move
  std::unordered_map<std::string_view, uint32_t> numbers_;
};

// Returns the folder for temporary files: $TMPDIR, else /tmp.
std::string TemporaryFolder();

// A sequence of events in a temporary file, which has no name.
class TorchEvents {
 public:
  // Errors: kInternal, if the file cannot be created or written; kResourceExhausted for more than 2^32 - 1 events.
  absl::Status Add(const TorchEvent& event);
  absl::Status Flush();
  // The number of events. Number i is that of the i-th call of Add.
  uint32_t size() const { return size_; }

  // Reads the events of some runs. Flush must have been called, and the object must outlive the cursor.
  class Cursor {
   public:
    Cursor(const TorchEvents& events, const Runs& runs) : events_(&events), runs_(&runs) {}
    // Stores the next event. Returns false at the end. Error: kInternal, if the file cannot be read.
    absl::StatusOr<bool> Next(TorchEvent* event);

   private:
    const TorchEvents* events_;
    const Runs* runs_;
    size_t run_ = 0;
    uint32_t done_ = 0;  // of this run
    std::vector<TorchEvent> buffer_;
    size_t next_ = 0;  // in the buffer
  };

 private:
  internal::FileDescriptor file_;
  std::vector<TorchEvent> buffer_;
  uint32_t size_ = 0;
};

struct TorchSnapshot {
  NumberedTexts texts;
  std::vector<TorchFrame> frames;
  std::vector<std::vector<uint32_t>> stacks;  // numbers of frames, innermost first; [0] is empty
  std::vector<TorchBlock> blocks;
  std::vector<TorchSegment> segments;
  std::vector<Runs> block_lists;  // [0] is empty
  TorchEvents events;
  Runs state;                // the segments of the state
  std::vector<Runs> traces;  // by device: events, in their order
  int64_t left_out = 0;      // events with an action that is not known
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_
