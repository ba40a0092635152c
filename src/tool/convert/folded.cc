// The format of Brendan Gregg's flamegraph.pl.

#include "src/tool/convert/format.h"
#include "src/tool/convert/frame_texts.h"

namespace hbmprof::tool {
namespace {

// A line is its first part, and the frames of its stack. All lines together can be much larger than the profile, so
// they are sorted without their texts.
struct Line {
  const std::string* first;
  uint32_t stack;
  int64_t value;
};

// Returns how the texts of two lines compare: negative, 0 or positive.
int Compare(const ProfileSet& profiles, FrameTexts& frames, const Line& a, const Line& b) {
  std::string_view left = *a.first;
  std::string_view right = *b.first;
  const uint64_t* left_end = profiles.stacks().end(a.stack);
  const uint64_t* right_end = profiles.stacks().end(b.stack);
  while (true) {
    const size_t count = std::min(left.size(), right.size());
    const int order = left.data() == right.data() ? 0 : left.substr(0, count).compare(right.substr(0, count));
    if (order != 0) return order;
    left.remove_prefix(count);
    right.remove_prefix(count);
    if (left.empty() && left_end != profiles.stacks().begin(a.stack)) left = frames.Of(*--left_end);
    if (right.empty() && right_end != profiles.stacks().begin(b.stack)) right = frames.Of(*--right_end);
    if (left.empty() || right.empty()) return static_cast<int>(right.empty()) - static_cast<int>(left.empty());
  }
}

absl::Status WriteFolded(const ProfileSet& profiles, size_t type, const std::vector<std::string>& by,
                         FileOutput& output) {
  // The separators of frames and lines must not be part of a name.
  const auto write = [](std::string name) {
    for (char& c : name) c = c == ';' || c == '\n' || c == '\r' ? ':' : c;
    return Visible(name);
  };
  FrameTexts frames(profiles, ";", [&](const ProfileSet::ShownFrame& frame) { return write(frame.name); });
  const std::string no_stack = Cat(";", kNoStack);
  std::map<uint32_t, std::string> labels;  // by label set
  std::vector<Line> lines;
  for (const ProfileSet::File& file : profiles.files()) {
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const ProfileSet::Sample& sample = file.samples[s];
      const int64_t value = profiles.Value(file, s, type);
      if (value == 0) continue;
      const auto [first, is_new] = labels.try_emplace(sample.labels);
      if (is_new) {
        for (const std::string& label : LabelFrames(profiles, sample.labels, by)) first->second += ";" + write(label);
      }
      const bool is_empty = first->second.empty() && profiles.stacks().length(sample.stack) == 0;
      lines.push_back({is_empty ? &no_stack : &first->second, sample.stack, value});
    }
  }
  absl::c_stable_sort(lines, [&](const Line& a, const Line& b) { return Compare(profiles, frames, a, b) < 0; });
  for (size_t i = 0; i < lines.size();) {
    const Line& line = lines[i];
    int64_t value = 0;
    for (; i < lines.size() && Compare(profiles, frames, line, lines[i]) == 0; ++i) AddTo(value, lines[i].value);
    std::string text = *line.first;
    frames.AppendStack(line.stack, text);
    RETURN_IF_ERROR(output.Append(Cat(std::string_view(text).substr(1), " ", value, "\n")));
  }
  return absl::OkStatus();
}

}  // namespace

const Format kFoldedFormat = {"folded", &WriteFolded, true};

}  // namespace hbmprof::tool
