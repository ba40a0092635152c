// The page that `hbmprof report` writes: it shows everything and needs no other file.
#ifndef HBMPROF_SRC_TOOL_REPORT_REPORT_H_
#define HBMPROF_SRC_TOOL_REPORT_REPORT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "src/export/recording.h"
#include "src/tool/profile/profile.h"
#include "src/tool/profile/view.h"
#include "src/tool/util/progress.h"

namespace hbmprof::tool {

// A recording, and its states as profiles (StatesOf).
struct RecordedReport {
  RecordedReport(std::unique_ptr<internal::RecordingReader> of, ProfileSet profiles)
      : reader(std::move(of)),
        states(std::move(profiles)),
        progress(2 * static_cast<size_t>(reader->event_count()), "events aggregated") {}

  std::unique_ptr<internal::RecordingReader> reader;
  ProfileSet states;
  Progress progress;
};

// The number of states of a recording that are judged: enough for `hbmprof leaks` to be sure.
inline constexpr size_t kJudgedStates = 12;
// Opens a recording and reads its states at `states` instants. Prints what it lacks as warnings of the subcommand
// `command`. Its size counts for the memory limit. Errors: those of RecordingReader::Open and StatesOf.
absl::StatusOr<std::unique_ptr<RecordedReport>> ReadRecorded(const std::string& command, const std::string& path,
                                                             size_t states);

// Returns the page for dumps of one program: the last is shown. If `has_base` is true, the first of `dumps` is the base
// and is not judged for growth. REQUIRES in this case: at least two dumps. Otherwise the earliest dump is the base.
// `recorded` may be null. If `dumps` is nullopt, the page shows the states of the recording. `per` is the counter for
// the growth, or "". The page runs only its own script, and shows the strings of the profiles as text. Errors: those of
// ApplyFilters, CheckTextOfStacks and OrderDumps.
absl::StatusOr<std::string> ReportPage(std::optional<ProfileSet> dumps, bool has_base, RecordedReport* recorded,
                                       const ViewOptions& options, const std::string& per);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_REPORT_H_
