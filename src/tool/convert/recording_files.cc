// See recording_files.h.
#include "src/tool/convert/recording_files.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

#include "src/tool/convert/table.h"
#include "src/tool/recording/gaps.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/util/exit_code.h"
#include "src/tool/util/output.h"
#include "src/tool/util/status_macros.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct Format {
  const char* name;
  absl::Status (*write)(internal::RecordingReader&, const RecordedStacks&, internal::FileOutput&, Progress&);
  bool needs_file;  // calls FileOutput::Overwrite
};
constexpr Format kFormats[] = {
    {"xplane", &WriteXplane, true}, {"perfetto", &WritePerfetto, false}, {"memory-viz", &WriteMemoryViz, false}};

const Format* FormatNamed(const std::string& name) {
  const Format* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                           [&name](const Format& format) { return name == format.name; });
  return found == std::end(kFormats) ? nullptr : found;
}

// Returns how many times all events are read to write the format.
size_t PassesOf(const std::string& format, const internal::RecordingTables& tables) {
  if (format == "perfetto") return 2;
  if (format != "memory-viz") return 1;
  const SiteTotals totals(tables);
  size_t used = 0;
  for (size_t account = 0; account < totals.account_count(); ++account) used += totals.account(account).is_used ? 1 : 0;
  return used;
}

}  // namespace

bool IsRecordingFormat(const std::string& name) { return FormatNamed(name) != nullptr; }

std::vector<std::string> RecordingFormats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<int> ConvertRecording(const std::vector<std::string>& files, const std::string& format,
                                     const std::string& output, const std::vector<std::string>& known) {
  if (files.size() != 1) {
    return absl::InvalidArgumentError(Cat("--to ", format, " takes one recording, not ", files.size()));
  }
  const std::optional<TableFormat> table = TableFormatNamed(format);
  if (output.empty() && !table.has_value()) {
    return absl::InvalidArgumentError(Cat("--to ", format, " writes a binary file: name it with -o FILE"));
  }
  const bool needs_file = !table.has_value() && FormatNamed(format)->needs_file;
  if (needs_file && IsStandardOutput(output)) {
    return absl::InvalidArgumentError(
        Cat("--to ", format, " cannot be written to standard output: name a file with -o FILE"));
  }
  RETURN_IF_ERROR(CheckIsNoInput(output, files));
  ASSIGN_OR_RETURN(const OpenedRecording opened, OpenRecording(files[0], known));
  internal::RecordingReader& recording = *opened.reader;
  RETURN_IF_ERROR(WriteOutput(output, [&](internal::FileOutput& file) {
    const auto events = static_cast<size_t>(std::max<int64_t>(recording.event_count(), 0));
    Progress progress(events * PassesOf(format, recording.tables()), "events read");
    if (table.has_value()) return WriteEventTable(*table, recording, opened.stacks, file, progress);
    return FormatNamed(format)->write(recording, opened.stacks, file, progress);
  }));
  WarnOfGaps("convert", files[0], recording);
  return kSuccess;
}

}  // namespace hbmprof::tool
