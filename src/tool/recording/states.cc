#include "src/tool/recording/states.h"

#include <sys/stat.h>

#include "hbmprof/pprof.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/torch/torch_snapshot.h"
#include "src/tool/util/memory_limit.h"

namespace hbmprof::tool {

const char kRecordedSiteLabel[] = "\x01recorded_site";

namespace {

// Adds kRecordedSiteLabel to the samples. `sites`: the row of each sample.
void AddSiteLabels(const std::vector<uint32_t>& sites, Snapshot& snapshot) {
  for (size_t i = 0; i < sites.size(); ++i) {
    std::vector<std::pair<std::string, std::string>>& tags = snapshot.samples[i].tags;
    const std::pair<std::string, std::string> tag = {kRecordedSiteLabel, std::to_string(sites[i])};
    tags.insert(absl::c_lower_bound(tags, tag), tag);
  }
}

absl::StatusOr<std::vector<ProfileBytes>> StatesOf(RecordingReader& recording, const std::string& name) {
  constexpr size_t count = kJudgedStates;
  const RecordingTables& tables = recording.tables();
  const std::unique_ptr<Symbolizer> names = internal::NamesOfRecording(tables);
  const int64_t nanos = Minus(recording.end_time(), tables.start_time);
  RecordingState state(tables);
  std::vector<ProfileBytes> states;
  const auto time_of = [&](size_t i) {
    return tables.start_time +
           static_cast<int64_t>(static_cast<double>(nanos) * static_cast<double>(i) / static_cast<double>(count - 1));
  };
  const auto add = [&](int64_t time) -> absl::Status {
    std::vector<uint32_t> sites;
    Snapshot snapshot = state.ToSnapshot(time, SampleAt(recording, time), &sites);
    AddSiteLabels(sites, snapshot);
    AddGaps(recording, snapshot);
    ASSIGN_OR_RETURN(std::string bytes, SerializePprof(snapshot, names.get()));
    const double seconds = static_cast<double>(time - tables.start_time) / 1e9;
    states.push_back({name + (states.size() + 1 == count ? "" : absl::StrFormat("@%.3fs", seconds)), std::move(bytes)});
    return absl::OkStatus();
  };
  RecordingCursor cursor(recording);
  RecordedEvent event;
  while (cursor.Next(&event)) {
    while (states.size() + 1 < count && time_of(states.size()) < event.time) {
      RETURN_IF_ERROR(add(time_of(states.size())));
    }
    state.Apply(event);
  }
  while (states.size() < count) {
    const int64_t time = states.size() + 1 == count ? std::max(recording.end_time(), state.time())
                                                    : std::max(time_of(states.size()), state.time());
    RETURN_IF_ERROR(add(time));
  }
  return states;
}

}  // namespace

absl::StatusOr<RecordedStates> ReadRecorded(const std::string& command, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) CountInput(static_cast<size_t>(info.st_size));
  ASSIGN_OR_RETURN(std::unique_ptr<RecordingReader> reader, OpenWholeRecording(path));
  ASSIGN_OR_RETURN(const std::vector<ProfileBytes> bytes, StatesOf(*reader, path));
  WarnOfGaps(command, path, *reader);
  ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::Parse(bytes));
  return RecordedStates{std::move(reader), std::move(profiles)};
}

}  // namespace hbmprof::tool
