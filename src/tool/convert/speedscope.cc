// The format of speedscope.app.

#include "src/tool/convert/format.h"
#include "src/tool/convert/frame_texts.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

std::string Speedscope(const ProfileSet& profiles, size_t, const std::vector<std::string>& by) {
  std::string all_frames;
  std::map<std::pair<std::string, std::string>, size_t> numbers;
  const auto number_of = [&](const ProfileSet::ShownFrame& frame) {
    const auto [entry, is_new] = numbers.try_emplace({frame.name, frame.Position()}, numbers.size());
    if (is_new) {
      Json json = {{"name", frame.name}};
      if (!frame.file.empty()) json["file"] = frame.has_source ? frame.file : frame.Position();
      if (frame.line != 0) json["line"] = frame.line;
      all_frames += Cat(entry->second == 0 ? "\n" : ",\n", Compact(json));
    }
    return std::to_string(entry->second);
  };
  FrameTexts frames(profiles, ",", number_of);
  // For each sample of all files: the numbers of its stack's frames.
  std::vector<std::string> stacks;
  for (const ProfileSet::File& file : profiles.files()) {
    for (const ProfileSet::Sample& sample : file.samples) {
      std::string& stack = stacks.emplace_back();
      for (const std::string& label : LabelFrames(profiles, sample.labels, by))
        stack += "," + number_of({label, "", 0, false});
      frames.AppendStack(sample.stack, stack);
      if (stack.empty()) stack = "," + number_of({kNoStack, "", 0, false});
    }
  }
  std::string views;
  for (size_t type = 0; type < profiles.types().size(); ++type) {
    std::string samples;
    std::string weights;
    int64_t total = 0;
    size_t number = 0;
    for (const ProfileSet::File& file : profiles.files()) {
      for (size_t s = 0; s < file.samples.size(); ++s, ++number) {
        const int64_t value = profiles.Value(file, s, type);
        if (value <= 0) continue;  // the viewer shows a value as a width
        samples += samples.empty() ? "[" : ",[";
        samples.append(stacks[number], 1).append("]");
        weights += Cat(weights.empty() ? "" : ",", value);
        AddTo(total, value);
      }
    }
    const SampleType& of = profiles.types()[type];
    views += Cat(type == 0 ? "" : ",", "\n{\"type\":\"sampled\",\"name\":", Quoted(of.type), ",\"unit\":\"",
                 of.unit == "bytes" ? "bytes" : "none", "\",\"startValue\":0,\"endValue\":", total, ",\n\"samples\":[",
                 samples, "],\n\"weights\":[", weights, "]}");
  }
  return Cat("{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\n\"name\":",
             Quoted(profiles.files()[0].path), ",\"exporter\":\"hbmprof\",\n\"shared\":{\"frames\":[", all_frames,
             "]},\n\"profiles\":[", views, "]}\n");
}

}  // namespace

const Format kSpeedscopeFormat = {"speedscope", &Speedscope};

}  // namespace hbmprof::tool
