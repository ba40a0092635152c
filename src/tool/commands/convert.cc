// `hbmprof convert`: writes profiles in formats of other viewers.

#include <filesystem>

#include "src/export/gzip.h"
#include "src/tool/commands/command.h"
#include "src/tool/convert/format.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

struct ConvertOptions : ViewOptions {
  ConvertOptions() : ViewOptions(false) {}

  std::vector<std::string> files;
  std::string to;
  std::string output;
  bool json = false;
};

// What was written.
struct Converted {
  std::optional<int64_t> events;      // of a recording
  std::vector<std::string> problems;  // what the recording lacks
};

// In the order of the help.
const Format* const kFormats[] = {&kCsvFormat, &kXplaneFormat, &kPerfettoFormat, &kMemoryVizFormat};
// A profile in which the births of buffers are labels, for pprof and other viewers.
constexpr char kBirths[] = "births";

absl::StatusOr<Converted> ConvertRecording(const ConvertOptions& options, const Format& format) {
  if (options.files.size() != 1) {
    return InvalidArgument("--to ", format.name, " takes one recording, not ", options.files.size());
  }
  if (!options.where.empty() || options.own || options.has_filter()) {
    return InvalidArgument("--to ", format.name,
                           " of a recording writes all events: of the options that select samples, only --known "
                           "applies");
  }
  if (format.overwrites && IsStandardOutput(options.output)) {
    return InvalidArgument("--to ", format.name, " cannot be written to standard output: name a file with -o FILE");
  }
  ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(options.files[0], options.known));
  RecordingReader& recording = *opened.reader;
  RETURN_IF_ERROR(WriteOutput(options.output, [&](internal::FileOutput& file) {
    return format.write_recording(recording, opened.stacks, file);
  }));
  return Converted{recording.event_count(), GapsOf(recording)};
}

absl::Status WriteBirths(const ConvertOptions& options) {
  if (options.files.size() != 1 || !options.where.empty() || options.own || options.has_filter()) {
    return InvalidArgument("--to births takes one profile, and no option that selects samples");
  }
  ASSIGN_OR_RETURN(RawProfile profile, ReadProfile(options.files[0]));
  RETURN_IF_ERROR(In(options.files[0], LabelBirths(0, &profile.message())));
  ASSIGN_OR_RETURN(const std::string bytes, internal::Gzip(profile.message().SerializeAsString()));
  return WriteOutput(options.output, bytes);
}

absl::StatusOr<Converted> Convert(const ConvertOptions& options) {
  if (options.to == kBirths) {
    RETURN_IF_ERROR(WriteBirths(options));
    return Converted();
  }
  const Format& format = **absl::c_find_if(kFormats, [&](const Format* one) { return options.to == one->name; });
  if (format.write_profiles == nullptr || IsRecordingFile(options.files[0])) return ConvertRecording(options, format);
  RETURN_IF_ERROR(WriteOutput(options.output, [&](internal::FileOutput& output) {
    return format.write_profiles(options.files, options, output);
  }));
  return Converted();
}

absl::StatusOr<int> RunConvert(ConvertOptions& options) {
  const auto* const format = absl::c_find_if(kFormats, [&](const Format* one) { return options.to == one->name; });
  const bool is_new = options.output.empty() && format != std::end(kFormats) && (*format)->suffix != nullptr;
  if (is_new) options.output = NewFileFor(options.files[0], (*format)->suffix);
  if (options.json && IsStandardOutput(options.output)) {
    return InvalidArgument("--json describes the file that is written: name it with -o FILE");
  }
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(options.files)));
  ASSIGN_OR_RETURN(const Converted converted, Convert(options));
  if (options.json) {
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(options.output, error);
    Print(ToText({{"version", kJsonVersion},
                  {"file", options.output},
                  {"format", options.to},
                  {"bytes", error ? Json() : Json(bytes)},
                  {"events", converted.events.has_value() ? Json(*converted.events) : Json()},
                  {"problems", converted.problems}}));
    return kSuccess;
  }
  for (const std::string& problem : converted.problems) PrintError("convert", Cat(options.files[0], ": ", problem));
  if (is_new) Print(Visible(options.output) + "\n");
  return kSuccess;
}

}  // namespace

Command AddConvertCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("convert", "Write files for other viewers");
  auto options = std::make_shared<ConvertOptions>();
  arguments
      ->add_option("SOURCE", options->files, "Profiles (of several, the rows of one after the other), or a recording")
      ->required();
  std::vector<std::string> names = {kBirths};
  std::string of_recordings;
  for (const Format* format : kFormats) {
    names.emplace_back(format->name);
    if (format->write_profiles == nullptr) of_recordings += Cat(of_recordings.empty() ? "" : ", ", format->name);
  }
  arguments->add_option("--to", options->to, Cat("The format; of recordings only: ", of_recordings))
      ->required()
      ->check(CLI::IsMember(names));
  arguments->add_option("-o,--output", options->output,
                        "The output file; - is standard output. Default: that, or a new file for a binary format");
  arguments->add_flag("--json", options->json, "Describe the file that is written as JSON");
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunConvert(*options); }, true};
}

}  // namespace hbmprof::tool
