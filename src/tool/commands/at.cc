// `hbmprof at`: writes the profile of an instant of a recording.
#include <memory>
#include <optional>
#include <string>

#include "src/tool/commands/command.h"
#include "src/tool/recording/gaps.h"
#include "src/tool/recording/instant.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/util/output.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct AtOptions {
  std::string file;
  std::string output;
  std::optional<std::string> time;
  std::optional<std::string> mark;
  std::string device;
  bool peak = false;
  bool before_oom = false;
  bool end = false;
};

// Returns the account of the device memory of the device that --device names. Without --device, returns the account, of
// any memory space, with the highest peak.
absl::StatusOr<size_t> AccountNamed(internal::RecordingReader& recording, const std::string& device) {
  if (device.empty()) return HighestAccount(recording);
  const std::vector<Snapshot::Device>& devices = recording.tables().names.devices;
  std::string names;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name == device) return i * kMemorySpaceCount;
    names += (i == 0 ? "" : ", ") + devices[i].name;
  }
  return absl::NotFoundError(Cat("--device ", device, ": the devices are: ", names));
}

absl::StatusOr<RecordedInstant> InstantOf(internal::RecordingReader& recording, const AtOptions& options) {
  if (options.time.has_value()) {
    const absl::StatusOr<int64_t> time = ParseRecordedTime(recording, *options.time);
    if (!time.ok()) return time.status();
    return InstantAt(recording, *time);
  }
  if (options.mark.has_value()) return AtMark(recording, *options.mark);
  if (options.before_oom) return BeforeOutOfMemory(recording);
  if (options.end) return EndOf(recording);
  const absl::StatusOr<size_t> account = AccountNamed(recording, options.device);
  if (!account.ok()) return account.status();
  return PeakOf(recording, *account);
}

absl::StatusOr<int> RunAt(const AtOptions& options) {
  if (!options.device.empty() && !options.peak)
    return absl::InvalidArgumentError("--device can be used only with --peak");
  if (const absl::Status status = CheckIsNoInput(options.output, {options.file}); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<internal::RecordingReader>> recording = internal::RecordingReader::Open(options.file);
  if (!recording.ok()) return recording.status();
  const absl::StatusOr<RecordedInstant> instant = InstantOf(**recording, options);
  if (!instant.ok()) {
    return absl::Status(instant.status().code(), Cat(options.file, ": ", std::string(instant.status().message())));
  }
  const absl::StatusOr<std::string> profile = ProfileAt(**recording, *instant);
  if (!profile.ok()) return profile.status();
  if (const absl::Status status = WriteOutput(options.output, *profile); !status.ok()) return status;
  WarnOfGaps("at", options.file, **recording);
  if (IsStandardOutput(options.output)) return kSuccess;

  const internal::RecordingTables& tables = (*recording)->tables();
  std::string text =
      Cat(options.output, ": ", TimeText(tables, instant->time), ", after ", instant->events, " events\n");
  const internal::RecordingState state = StateAt(**recording, *instant);
  for (size_t account = 0; account < state.account_count(); ++account) {
    if (state.peak_bytes(account) == 0) continue;
    text += Cat("  ", AccountName(tables, account), "  in use ", FormatValue(state.bytes_in_use(account), "bytes"),
                "  peak so far ", FormatValue(state.peak_bytes(account), "bytes"), "\n");
  }
  Print(text);
  return kSuccess;
}

}  // namespace

Command AddAtCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("at", "Write the profile of an instant of a recording");
  auto options = std::make_shared<AtOptions>();
  arguments->add_option("FILE", options->file, "A recording")->required();
  CLI::Option_group* instant = arguments->add_option_group("Instant", "One of these");
  instant->add_option("--time", options->time, "Seconds since the start (12.5, 500ms, 2m), or 2026-11-22T18:20:04Z");
  instant->add_flag("--peak", options->peak, "When the bytes in use were highest");
  instant->add_flag("--before-oom", options->before_oom, "Before the last allocation that failed");
  instant->add_option("--mark", options->mark, "At a mark, such as the name of a profile that was written then");
  instant->add_flag("--end", options->end, "At the end of the recording (also if the process was killed)");
  instant->require_option(1);
  arguments->add_option("--device", options->device, "With --peak: of this device (default: the highest of all)");
  arguments->add_option("-o,--output", options->output, "The profile to write; - is standard output")->required();
  return {arguments, [options] { return RunAt(*options); }, true};
}

}  // namespace hbmprof::tool
