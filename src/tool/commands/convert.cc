// `hbmprof convert`: writes profiles in formats of other viewers.

#include "src/export/gzip.h"
#include "src/tool/commands/command.h"
#include "src/tool/convert/format.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct ConvertOptions : ViewOptions {
  ConvertOptions() : ViewOptions(false) {}

  std::vector<std::string> files;
  std::string to;
  std::string output;
};

// A profile in which the births of buffers are labels, for pprof and other viewers.
const Format kBirthsFormat = {"births", [](pprof::Profile& profile) { return LabelBirths(0, &profile); }};
// In the order of the help.
const Format* const kFormats[] = {&kCsvFormat,    &kNdjsonFormat,   &kBirthsFormat,
                                  &kXplaneFormat, &kPerfettoFormat, &kMemoryVizFormat};

bool IsOfRecordings(const Format& format) {
  return format.write_recording != nullptr && format.write_profiles == nullptr;
}

absl::Status ConvertRecording(ConvertOptions& options, const Format& format) {
  const auto refusal = [&](const auto&... why) { return InvalidArgument("--to ", format.name, why...); };
  if (!options.where.empty() || options.own || options.has_filter()) {
    return refusal(" of a recording writes all events: of the options that select samples, only --known applies");
  }
  if (options.files.size() != 1) return refusal(" takes one recording, not ", options.files.size());
  const bool is_new = options.output.empty() && format.suffix != nullptr;
  if (is_new) options.output = NewFileFor(options.files[0], format.suffix);
  if (format.overwrites && IsStandardOutput(options.output)) {
    return refusal(" cannot be written to standard output: name a file with -o FILE");
  }
  RETURN_IF_ERROR(CheckIsNoInput(options.output, options.files));
  ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(options.files[0], options.known));
  RecordingReader& recording = *opened.reader;
  RETURN_IF_ERROR(WriteOutput(options.output, [&](internal::FileOutput& file) {
    const auto events = static_cast<size_t>(std::max<int64_t>(recording.event_count(), 0));
    const size_t passes = format.passes == nullptr ? 1 : format.passes(recording.tables());
    Progress progress(events * passes, "events read");
    return format.write_recording(recording, opened.stacks, file, progress);
  }));
  WarnOfGaps("convert", options.files[0], recording);
  if (is_new) Print(Visible(options.output) + "\n");
  return absl::OkStatus();
}

absl::Status RewriteProfile(const ConvertOptions& options, const Format& format) {
  if (options.files.size() != 1 || !options.where.empty() || options.own || options.has_filter()) {
    return InvalidArgument("--to ", format.name, " takes one profile, and no option that selects samples");
  }
  ASSIGN_OR_RETURN(RawProfile profile, ReadProfile(options.files[0]));
  RETURN_IF_ERROR(In(options.files[0], format.rewrite(profile.message())));
  ASSIGN_OR_RETURN(const std::string bytes, internal::Gzip(profile.message().SerializeAsString()));
  return WriteOutput(options.output, bytes);
}

absl::Status Convert(ConvertOptions& options) {
  const Format& format = **absl::c_find_if(kFormats, [&](const Format* one) { return options.to == one->name; });
  if (IsOfRecordings(format) || (format.write_recording != nullptr && IsRecordingFile(options.files[0]))) {
    return ConvertRecording(options, format);
  }
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(options.files)));
  if (format.rewrite != nullptr) return RewriteProfile(options, format);
  return WriteOutput(options.output, [&](internal::FileOutput& output) {
    return format.write_profiles(options.files, options, output);
  });
}

}  // namespace

Command AddConvertCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("convert", "Write files for other viewers");
  auto options = std::make_shared<ConvertOptions>();
  arguments
      ->add_option("SOURCE", options->files, "Profiles (of several, the rows of one after the other), or a recording")
      ->required();
  std::vector<std::string> names;
  std::string of_recordings;
  for (const Format* format : kFormats) {
    names.emplace_back(format->name);
    if (IsOfRecordings(*format)) of_recordings += Cat(of_recordings.empty() ? "" : ", ", format->name);
  }
  arguments->add_option("--to", options->to, Cat("The format; of recordings only: ", of_recordings))
      ->required()
      ->check(CLI::IsMember(names));
  arguments->add_option("-o,--output", options->output,
                        "The output file; - is standard output. Default: that, or a new file for a binary format");
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments,
          [options]() -> absl::StatusOr<int> {
            RETURN_IF_ERROR(Convert(*options));
            return kSuccess;
          },
          true};
}

}  // namespace hbmprof::tool
