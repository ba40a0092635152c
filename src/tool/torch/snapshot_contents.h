// What a snapshot of PyTorch contains: the state of the allocator, and the events of its trace.
#ifndef HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_
#define HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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
  uint32_t stack = 0;
  uint32_t metadata = 0;  // number of a text; 0: none
  TorchAction action = TorchAction::kAlloc;
};

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

struct TorchSnapshot {
  NumberedTexts texts;
  std::vector<TorchFrame> frames;
  std::vector<std::vector<uint32_t>> stacks;  // numbers of frames, innermost first; [0] is empty
  std::vector<TorchBlock> blocks;
  std::vector<TorchSegment> segments;
  std::vector<TorchEvent> events;
  std::vector<uint32_t> state;                // numbers of the segments of the state
  std::vector<std::vector<uint32_t>> traces;  // by device: numbers of events, in their order
  int64_t left_out = 0;                       // events with an action that is not known
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_TORCH_SNAPSHOT_CONTENTS_H_
