// `hbmprof convert`: writes profiles in formats of other viewers.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "src/export/gzip.h"
#include "src/tool/commands/command.h"
#include "src/tool/commands/options.h"
#include "src/tool/convert/frame_texts.h"
#include "src/tool/convert/recording_files.h"
#include "src/tool/convert/table.h"
#include "src/tool/profile/ages.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/source/read_profiles.h"
#include "src/tool/sums/sums_view.h"
#include "src/tool/util/arithmetic.h"
#include "src/tool/util/json.h"
#include "src/tool/util/output.h"
#include "src/tool/util/status_macros.h"

namespace hbmprof::tool {
namespace {

struct ConvertOptions : ViewOptions {
  ConvertOptions() : ViewOptions(false) {}

  std::vector<std::string> files;
  std::string to;
  std::string output;
  std::string type;
  std::vector<std::string> by;
};

// Returns the labels `by` as the outermost frames: "device=GPU:0".
std::vector<std::string> LabelFrames(const ProfileSet& profiles, uint32_t labels, const std::vector<std::string>& by) {
  std::vector<std::string> names;
  for (const std::string& key : by) names.push_back(Cat(key, "=", profiles.LabelText(labels, key)));
  return names;
}
constexpr char kNoStack[] = "[no stack]";

// Brendan Gregg's format: one line per stack, outermost frame first.
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
      int64_t& sum = lines[line.substr(1)];
      sum = Plus(sum, value);
    }
  }
  std::string text;
  for (const auto& [line, value] : lines) text += Cat(line, " ", value, "\n");
  return text;
}

std::string Speedscope(const ProfileSet& profiles, const std::vector<std::string>& by) {
  std::string all_frames;
  std::map<std::pair<std::string, std::string>, size_t> numbers;
  const auto number_of = [&](const ProfileSet::ShownFrame& frame) {
    const auto [entry, is_new] = numbers.try_emplace({frame.name, frame.Position()}, numbers.size());
    if (is_new) {
      Json json = {{"name", frame.name}};
      if (!frame.file.empty()) json["file"] = frame.has_source ? frame.file : frame.Position();
      if (frame.line != 0) json["line"] = frame.line;
      all_frames += entry->second == 0 ? "\n" : ",\n";
      all_frames += VisibleJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
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
        total = Plus(total, value);
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

absl::StatusOr<int> ConvertBirths(const ConvertOptions& options) {
  if (options.files.size() != 1 || !options.where.empty() || options.own || options.has_filter()) {
    return absl::InvalidArgumentError("--to births takes one profile, and no option that selects samples");
  }
  ASSIGN_OR_RETURN(RawProfile profile, ReadProfile(options.files[0]));
  const auto& samples = profile.message().sample();
  if (std::none_of(samples.begin(), samples.end(), [](const auto& sample) { return sample.has_ages(); })) {
    return absl::InvalidArgumentError(
        Cat(options.files[0],
            ": has no ages of buffers; they are in profiles of this version or later that no other "
            "tool has rewritten"));
  }
  LabelBirths(&profile.message());
  ASSIGN_OR_RETURN(const std::string bytes, internal::Gzip(profile.message().SerializeAsString()));
  RETURN_IF_ERROR(WriteOutput(options.output, bytes));
  return kSuccess;
}

absl::StatusOr<int> RunConvert(const ConvertOptions& options) {
  const std::optional<TableFormat> table = TableFormatNamed(options.to);
  if (IsRecordingFormat(options.to) || (table.has_value() && IsRecordingFile(options.files[0]))) {
    if (!options.by.empty() || !options.type.empty() || !options.where.empty() || options.own || options.has_filter()) {
      return absl::InvalidArgumentError(
          Cat("--to ", options.to,
              " of a recording writes all events: of the options that select or group samples, only "
              "--known applies"));
    }
    return ConvertRecording(options.files, options.to, options.output, options.known);
  }
  if (!options.type.empty() && options.to != "folded") {
    return absl::InvalidArgumentError(
        Cat("--type ", options.type, ": ", options.to, " contains all sample types; --type is for folded stacks"));
  }
  if (!options.by.empty() && options.to != "folded" && options.to != "speedscope") {
    return absl::InvalidArgumentError(
        Cat("--by: ", options.to, " contains all labels; --by is for folded stacks and speedscope"));
  }
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(options.files)));
  if (options.to == "births") return ConvertBirths(options);
  if (table.has_value()) {
    RETURN_IF_ERROR(WriteOutput(options.output, [&](internal::FileOutput& output) {
      return WriteSampleTable(*table, options.files, options, output);
    }));
    return kSuccess;
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(options.files));
  KeepLastOfEachProcess("convert", 0, profiles);
  RETURN_IF_ERROR(ApplyView("convert", options, profiles));
  RETURN_IF_ERROR(CheckLabels(profiles, options.by));
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  ASSIGN_OR_RETURN(const size_t type, profiles.TypeNamed(options.type));
  const std::string text =
      options.to == "folded" ? Folded(profiles, type, options.by) : Speedscope(profiles, options.by);
  if (IsStandardOutput(options.output)) {
    Print(text);
  } else if (const absl::Status status = WriteOutput(options.output, text); !status.ok()) {
    return status;
  }
  return kSuccess;
}

}  // namespace

Command AddConvertCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("convert", "Write files for other viewers");
  auto options = std::make_shared<ConvertOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Profiles, combined into one (csv, ndjson: one after the other); or a recording")
      ->required();
  std::vector<std::string> formats = RecordingFormats();
  formats.insert(formats.begin(), {"csv", "ndjson", "folded", "speedscope", "births"});
  arguments
      ->add_option("--to", options->to,
                   "csv, ndjson, folded, speedscope, births; of a recording also "
                   "xplane, perfetto, memory-viz")
      ->required()
      ->check(CLI::IsMember(formats));
  arguments->add_option("-o,--output", options->output, "The output file (default, and -: standard output)");
  arguments->add_option("-t,--type", options->type, "Sample type, of folded stacks (default: the profile's own)");
  arguments->add_option("-b,--by", options->by, "Labels to put above the stacks: device,kind")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunConvert(*options); }, true};
}

}  // namespace hbmprof::tool
