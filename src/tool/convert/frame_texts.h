// The text of stacks, for the formats of `hbmprof convert`.
#ifndef HBMPROF_SRC_TOOL_CONVERT_FRAME_TEXTS_H_
#define HBMPROF_SRC_TOOL_CONVERT_FRAME_TEXTS_H_

#include "src/tool/profile/profile.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

// Makes the text of each location only once, although the location can be in many stacks. `write` returns the text of
// one frame. The outermost frame of a stack comes first.
class FrameTexts {
 public:
  using Write = std::function<std::string(const ProfileSet::ShownFrame&)>;
  FrameTexts(const ProfileSet& profiles, std::string separator, Write write)
      : profiles_(profiles),
        separator_(std::move(separator)),
        write_(std::move(write)),
        texts_(profiles.locations().size()) {}

  // Appends the frames of a stack, with the separator before each.
  void AppendStack(uint32_t stack, std::string& out) {
    const uint64_t* begin = profiles_.stacks().begin(stack);
    const size_t length = profiles_.stacks().length(stack);
    for (size_t i = 0; i < length; ++i) out += Of(begin[length - 1 - i]);
  }

  // Returns the frames of a location, with the separator before each. The text does not move or change.
  const std::string& Of(uint64_t location) {
    std::string& text = texts_[location];
    if (!text.empty()) return text;
    std::vector<ProfileSet::ShownFrame> frames = profiles_.ShownLocation(location);
    absl::c_reverse(frames);
    for (const ProfileSet::ShownFrame& frame : frames) text += separator_ + write_(frame);
    return text;
  }

 private:
  const ProfileSet& profiles_;
  const std::string separator_;
  const Write write_;
  std::vector<std::string> texts_;  // by location
};

// Returns the labels `by` as the outermost frames: "device=GPU:0".
inline std::vector<std::string> LabelFrames(const ProfileSet& profiles, uint32_t labels,
                                            const std::vector<std::string>& by) {
  std::vector<std::string> names;
  for (const std::string& key : by) names.push_back(Cat(key, "=", profiles.LabelText(labels, key)));
  return names;
}

// The only frame of a sample without a stack and labels.
inline constexpr char kNoStack[] = "[no stack]";

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONVERT_FRAME_TEXTS_H_
