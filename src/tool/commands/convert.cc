// `hbmprof convert`: writes profiles in formats of other viewers.
#include <filesystem>

#include "src/tool/commands/command.h"
#include "src/tool/convert/format.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct ConvertOptions : ViewOptions {
  ConvertOptions() : ViewOptions(false) {}

  std::vector<std::string> files;
  std::string to;
  std::string output;
  bool json = false;
};

const Format* const kFormats[] = {&kCsvFormat, &kXplaneFormat, &kPerfettoFormat, &kMemoryVizFormat};

absl::StatusOr<int> RunConvert(ConvertOptions& options) {
  const Format& format = **absl::c_find_if(kFormats, [&](const Format* one) { return options.to == one->name; });
  const std::vector<std::string>& files = options.files;
  const bool is_new = options.output.empty() && format.suffix != nullptr;
  if (is_new) options.output = NewFileFor(files[0], format.suffix);
  RETURN_IF_ERROR(CheckFileJson(IsStandardOutput(options.output) ? "-" : options.output, options.json));
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(files)));
  std::optional<int64_t> events;      // of a recording
  std::vector<std::string> problems;  // what the recording lacks
  if (format.write_profiles != nullptr && !IsRecordingFile(files[0])) {
    RETURN_IF_ERROR(WriteOutput(
        options.output, [&](internal::FileOutput& output) { return format.write_profiles(files, options, output); }));
  } else {
    if (files.size() != 1) return InvalidArgument("--to ", format.name, " takes one recording, not ", files.size());
    if (!options.where.empty() || options.own || options.has_filter()) {
      return InvalidArgument("--to ", format.name,
                             " of a recording writes all events: of the options that select samples, only --known "
                             "applies");
    }
    if (format.overwrites && IsStandardOutput(options.output)) {
      return InvalidArgument("--to ", format.name, " cannot be written to standard output: name a file with -o FILE");
    }
    ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(files[0], options.known));
    RETURN_IF_ERROR(WriteOutput(options.output, [&](internal::FileOutput& output) {
      return format.write_recording(*opened.reader, opened.stacks, output);
    }));
    events = opened.reader->event_count();
    problems = GapsOf(*opened.reader);
  }
  if (options.json) {
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(options.output, error);
    Print(ToText({{"version", kJsonVersion},
                  {"file", options.output},
                  {"format", options.to},
                  {"bytes", error ? Json() : Json(bytes)},
                  {"events", OrNull(events)},
                  {"problems", problems}}));
    return kSuccess;
  }
  for (const std::string& problem : problems) PrintError("convert", Cat(files[0], ": ", problem));
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
  std::vector<std::string> names;
  std::string of_all;
  std::string of_recordings;
  for (const Format* format : kFormats) {
    names.emplace_back(format->name);
    std::string& list = format->write_profiles == nullptr ? of_recordings : of_all;
    list += Cat(list.empty() ? "" : ", ", format->name);
  }
  arguments->add_option("--to", options->to, Cat("The format: ", of_all, "; of recordings only: ", of_recordings))
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
