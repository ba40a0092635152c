// A recording that is opened: its call stacks as text, with the same names and the same view of the program's own code
// as in the commands that read profiles, and what it lacks.
#ifndef HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
#define HBMPROF_SRC_TOOL_RECORDING_STACKS_H_

#include "src/tool/profile/profile.h"
#include "src/tool/recording/cursor.h"

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
  // The innermost frame of the stack; if Make's `own_code` is true, after AttributeToOwnCode.
  const Frame& own_frame(uint32_t stack) const { return own_frames_[stack]; }
  // Returns the names of the innermost own frames of the site's stack: "f < g < h"; "" without a site.
  std::string CallersAt(const RecordingTables& tables, uint32_t site) const;
  // The same after ", requested by " or ", noticed at " (kLateFailure); "" without a site.
  std::string RequestedBy(const RecordingTables& tables, uint32_t site) const;

 private:
  RecordedStacks() = default;
  std::vector<Frame> frames_;
  std::vector<std::vector<uint32_t>> stacks_;
  std::vector<Frame> own_frames_;  // by stack
  std::optional<ProfileSet> own_;  // with the stacks after AttributeToOwnCode
  std::vector<uint32_t> in_own_;   // by stack: its number in `own_`; UINT32_MAX: it has no frame
};

// Returns the text on an allocation that failed: "1.95 GiB failed WHEN, requested by f < g < h". `when`: " WHEN" or "".
std::string FailedText(const RecordingTables& tables, const RecordedEvent& event, const std::string& when = "");

struct OpenedRecording {
  std::unique_ptr<RecordingReader> reader;
  RecordedStacks stacks;
};
// `known` and `own_code`: see RecordedStacks::Make.
absl::StatusOr<OpenedRecording> OpenRecording(const std::string& path, const std::vector<std::string>& known,
                                              bool own_code = true);

// Returns what the recording lacks, one message for each: it is damaged or was not ended, events were lost, or its list
// of the buffers that were live at its start is incomplete. Some damage is found only while the events are read.
std::vector<std::string> GapsOf(const RecordingReader& recording);
// Prints each of them as a warning to stderr.
void WarnOfGaps(const std::string& command, const std::string& path, const RecordingReader& recording);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
