// The call stacks of a recording as text, with the same names and the same view of the program's own code as in the
// commands that read profiles.
#ifndef HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
#define HBMPROF_SRC_TOOL_RECORDING_STACKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/export/recording.h"
#include "src/tool/profile/own_code.h"

namespace hbmprof::tool {

class RecordedStacks {
 public:
  struct Frame {
    std::string name;  // never empty
    std::string file;  // the source file; the binary if the source file is not known; may be empty
    int64_t line = 0;  // 0: not known
    // Returns "file:line", or the binary in brackets, or "".
    std::string Position() const;
  };

  // Error: kInvalidArgument or kResourceExhausted if the stacks of the tables are not consistent or too large.
  // `own_code`: whether own_frame() leaves out known libraries.
  static absl::StatusOr<RecordedStacks> Make(const internal::RecordingTables& tables, KnownLibraries& libraries,
                                             bool own_code = true);

  // All frames of all stacks, each once.
  const std::vector<Frame>& frames() const { return frames_; }
  // The numbers of the frames of a stack (Snapshot::Sample::stack), innermost first; at least one. Functions of hbmprof
  // itself are left out.
  const std::vector<uint32_t>& stack(uint32_t number) const { return stacks_[number]; }
  // The first frame of the stack that is the program's own code; the innermost frame if there is none, or if Make's
  // `own_code` is false.
  const Frame& own_frame(uint32_t stack) const { return frames_[own_frames_[stack]]; }

 private:
  RecordedStacks() = default;
  std::vector<Frame> frames_;
  std::vector<std::vector<uint32_t>> stacks_;
  std::vector<uint32_t> own_frames_;  // by stack: index in frames_
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_STACKS_H_
