// The format of Brendan Gregg's flamegraph.pl.

#include "src/tool/convert/format.h"
#include "src/tool/convert/frame_texts.h"

namespace hbmprof::tool {
namespace {

std::string Folded(const ProfileSet& profiles, size_t type, const std::vector<std::string>& by) {
  // The separators of frames and lines must not be part of a name.
  const auto write = [](std::string name) {
    for (char& c : name) c = c == ';' || c == '\n' || c == '\r' ? ':' : c;
    return Visible(name);
  };
  FrameTexts frames(profiles, ";", [&](const ProfileSet::ShownFrame& frame) { return write(frame.name); });
  std::map<std::string, int64_t> lines;
  for (const ProfileSet::File& file : profiles.files()) {
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const int64_t value = profiles.Value(file, s, type);
      if (value == 0) continue;
      std::string line;
      for (const std::string& label : LabelFrames(profiles, file.samples[s].labels, by)) line += ";" + write(label);
      frames.AppendStack(file.samples[s].stack, line);
      if (line.empty()) line = Cat(";", kNoStack);
      AddTo(lines[line.substr(1)], value);
    }
  }
  std::string text;
  for (const auto& [line, value] : lines) text += Cat(line, " ", value, "\n");
  return text;
}

}  // namespace

const Format kFoldedFormat = {"folded", &Folded, true};

}  // namespace hbmprof::tool
