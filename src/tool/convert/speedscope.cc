// The format of speedscope.app.

#include "src/tool/convert/format.h"
#include "src/tool/convert/frame_texts.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

absl::Status WriteSpeedscope(const ProfileSet& profiles, size_t, const std::vector<std::string>& by,
                             FileOutput& output) {
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
  // Returns the numbers of the frames of a sample's stack. All of them together can be much larger than the profile.
  const auto stack_of = [&](const ProfileSet::Sample& sample) {
    std::string stack;
    for (const std::string& label : LabelFrames(profiles, sample.labels, by))
      stack += "," + number_of({label, "", 0, false});
    frames.AppendStack(sample.stack, stack);
    if (stack.empty()) stack = "," + number_of({kNoStack, "", 0, false});
    return stack.substr(1);
  };
  for (const ProfileSet::File& file : profiles.files()) {
    for (const ProfileSet::Sample& sample : file.samples) stack_of(sample);
  }
  RETURN_IF_ERROR(
      output.Append(Cat("{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\n\"name\":",
                        Quoted(profiles.files()[0].path), ",\"exporter\":\"hbmprof\",\n\"shared\":{\"frames\":[",
                        all_frames, "]},\n\"profiles\":[")));
  for (size_t type = 0; type < profiles.types().size(); ++type) {
    std::string weights;
    int64_t total = 0;
    for (const ProfileSet::File& file : profiles.files()) {
      for (size_t s = 0; s < file.samples.size(); ++s) {
        const int64_t value = profiles.Value(file, s, type);
        if (value <= 0) continue;  // the viewer shows a value as a width
        weights += Cat(weights.empty() ? "" : ",", value);
        AddTo(total, value);
      }
    }
    const SampleType& of = profiles.types()[type];
    RETURN_IF_ERROR(output.Append(Cat(type == 0 ? "" : ",", "\n{\"type\":\"sampled\",\"name\":", Quoted(of.type),
                                      ",\"unit\":\"", of.unit == "bytes" ? "bytes" : "none",
                                      "\",\"startValue\":0,\"endValue\":", total, ",\n\"samples\":[")));
    const char* before = "[";
    for (const ProfileSet::File& file : profiles.files()) {
      for (size_t s = 0; s < file.samples.size(); ++s) {
        if (profiles.Value(file, s, type) <= 0) continue;
        RETURN_IF_ERROR(output.Append(Cat(before, stack_of(file.samples[s]), "]")));
        before = ",[";
      }
    }
    RETURN_IF_ERROR(output.Append(Cat("],\n\"weights\":[", weights, "]}")));
  }
  return output.Append("]}\n");
}

}  // namespace

const Format kSpeedscopeFormat = {"speedscope", &WriteSpeedscope};

}  // namespace hbmprof::tool
