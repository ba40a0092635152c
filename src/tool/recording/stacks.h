// A recording that is opened: its call stacks as text, with the same names and the same view of the program's own code
// as in the commands that read profiles, and what it lacks.
#ifndef HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
#define HBMPROF_SRC_TOOL_RECORDING_STACKS_H_

#include "src/tool/profile/profile.h"
#include "src/tool/recording/cursor.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

class RecordedStacks {
 public:
  using Frame = ProfileSet::ShownFrame;

  // `tables`: those of the recording `path`. `known`: see KnownLibraries::Make. `own_code`: whether own_frame() leaves
  // out known libraries. Error: kInvalidArgument or kResourceExhausted if the stacks of the tables are not consistent
  // or too large, or for a wrong expression in `known`.
  static absl::StatusOr<RecordedStacks> Make(const std::string& path, const RecordingTables& tables,
                                             const std::vector<std::string>& known, bool own_code);

  // All frames of all stacks, each once.
  const std::vector<Frame>& frames() const { return frames_; }
  // The numbers of the frames of a stack (Snapshot::Sample::stack), innermost first; at least one. Functions of hbmprof
  // itself are left out. After the stacks of the tables, each pool (RecordedPools) has a stack for its idle memory.
  const std::vector<uint32_t>& stack(uint32_t number) const { return stacks_[number]; }
  // The first frame of the stack that counts as own code (OwnRank in known_code.h), under the name OwnName; the
  // innermost frame if Make's `own_code` is false.
  const Frame& own_frame(uint32_t stack) const { return frames_[own_frames_[stack]]; }

 private:
  RecordedStacks() = default;
  std::vector<Frame> frames_;
  std::vector<std::vector<uint32_t>> stacks_;
  std::vector<uint32_t> own_frames_;  // by stack: index in frames_
};

// A recording and its stacks.
struct OpenedRecording {
  std::unique_ptr<RecordingReader> reader;
  RecordedStacks stacks;
};
// `known` and `own_code`: see RecordedStacks::Make.
absl::StatusOr<OpenedRecording> OpenRecording(const std::string& path, const std::vector<std::string>& known,
                                              bool own_code = true);

// Returns what the recording lacks, one message for each: it is damaged or was not ended, events were lost, or its list
// of the buffers that were live at its start is incomplete.
std::vector<std::string> GapsOf(const RecordingReader& recording);
// Adds each of them to the warnings of a profile. Some damage is found only while the events are read.
void AddGaps(const RecordingReader& recording, Snapshot& snapshot);
// Prints each of them as a warning to stderr.
void WarnOfGaps(const std::string& command, const std::string& path, const RecordingReader& recording);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
