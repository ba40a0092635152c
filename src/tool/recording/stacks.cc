#include "src/tool/recording/stacks.h"

#include <cstdlib>

#include "hbmprof/out_of_memory.h"
#include "hbmprof/pprof.h"
#include "src/core/pool_samples.h"
#include "src/tool/profile/labels.h"
#include "src/tool/symbols/profile_symbols.h"
#include "src/tool/torch/torch_snapshot.h"

namespace hbmprof::tool {
namespace {

constexpr char kStackLabel[] = "bytes";

// Returns a profile with one sample for each stack. Its label kStackLabel is the number of the stack plus 1.
absl::StatusOr<ProfileSet> ProfileOfStacks(const RecordingTables& tables) {
  Snapshot snapshot = tables.names;
  snapshot.samples.clear();
  if (snapshot.devices.empty()) snapshot.devices.emplace_back();
  const RecordedPools pools(tables);
  for (const RecordedPools::Pool& pool : pools.all()) {
    snapshot.stacks.push_back({{Snapshot::kNamedFrame | snapshot.named_frames.size()}, false});
    snapshot.named_frames.push_back({internal::IdleMemoryFrame(pool.name), "", 0, 0});
  }
  for (uint32_t stack = 0; stack < snapshot.stacks.size(); ++stack) {
    Snapshot::Sample& sample = snapshot.samples.emplace_back();
    sample.stack = stack;
    sample.alloc_objects = 1;
    sample.alloc_bytes = int64_t{stack} + 1;  // the label is their quotient
  }
  const std::unique_ptr<Symbolizer> names = internal::NamesOfRecording(tables);
  ASSIGN_OR_RETURN(std::string bytes, SerializePprof(snapshot, names.get()));
  return ParseWithLines({{"the recording", std::move(bytes)}});
}

}  // namespace

absl::StatusOr<RecordedStacks> RecordedStacks::Make(const std::string& path, const RecordingTables& tables,
                                                    const std::vector<std::string>& known, bool own_code) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(known));
  RecordedStacks result;
  const size_t count = tables.names.stacks.size() + RecordedPools(tables).all().size();
  if (count == 0) return result;
  ASSIGN_OR_RETURN(ProfileSet profiles, In(path, ProfileOfStacks(tables)));
  std::vector<uint32_t> first_frames;  // by location
  for (uint64_t l = 0; l < profiles.locations().size(); ++l) {
    first_frames.push_back(static_cast<uint32_t>(result.frames_.size()));
    for (Frame& frame : profiles.ShownLocation(l)) result.frames_.push_back(std::move(frame));
  }
  first_frames.push_back(static_cast<uint32_t>(result.frames_.size()));
  result.frames_.push_back({"[no stack]", "", 0, false});
  result.stacks_.assign(count, {first_frames.back()});
  result.own_frames_.assign(count, result.frames_.back());
  result.in_own_.assign(count, UINT32_MAX);
  const auto for_each_stack = [&](const auto& visit) {
    for (const ProfileSet::Sample& sample : profiles.files()[0].samples) {
      if (profiles.stacks()[sample.stack].empty()) continue;
      const std::string label = profiles.LabelText(sample.labels, kStackLabel);
      visit(static_cast<size_t>(std::atoll(label.c_str()) - 1), sample.stack);
    }
  };
  for_each_stack([&](size_t number, uint32_t stack) {
    std::vector<uint32_t>& frames = result.stacks_[number];
    frames.clear();
    for (const uint64_t l : profiles.stacks()[stack]) {
      for (uint32_t frame = first_frames[l]; frame < first_frames[l + 1]; ++frame) frames.push_back(frame);
    }
  });
  if (own_code) AttributeToOwnCode(libraries, profiles);
  for_each_stack([&](size_t number, uint32_t stack) {
    result.own_frames_[number] = profiles.ShownLocation(profiles.stacks()[stack][0])[0];
    result.in_own_[number] = stack;
  });
  result.own_ = std::move(profiles);
  return result;
}

std::string RecordedStacks::CallersAt(const RecordingTables& tables, uint32_t site) const {
  constexpr size_t kShown = 4;
  const uint32_t stack = site < tables.sites.size() ? in_own_[tables.sites[site].stack] : UINT32_MAX;
  if (stack == UINT32_MAX) return "";
  std::vector<Frame> frames = own_->ShownStack(stack);
  frames.resize(std::min(frames.size(), kShown));
  return absl::StrJoin(frames, " < ", [](std::string* out, const Frame& frame) { *out += frame.name; });
}

std::string RecordedStacks::RequestedBy(const RecordingTables& tables, uint32_t site) const {
  const std::string callers = CallersAt(tables, site);
  if (callers.empty()) return "";
  const bool is_late =
      absl::c_any_of(tables.sites[site].tags, [](const auto& tag) { return tag.second == kLateFailure; });
  return Cat(is_late ? ", noticed at " : ", requested by ", callers);
}

std::string FailedText(const RecordingTables& tables, const RecordedEvent& event, const std::string& when) {
  const absl::StatusOr<RecordedStacks> stacks = RecordedStacks::Make("", tables, {}, true);
  return Cat(event.bytes > 0 ? Bytes(event.bytes) : "unknown size", " failed", when,
             stacks.ok() ? stacks->RequestedBy(tables, event.site) : "");
}

absl::StatusOr<OpenedRecording> OpenRecording(const std::string& path, const std::vector<std::string>& known,
                                              bool own_code) {
  ASSIGN_OR_RETURN(std::unique_ptr<RecordingReader> reader, OpenRecordingFile(path));
  ASSIGN_OR_RETURN(RecordedStacks stacks, RecordedStacks::Make(path, reader->tables(), known, own_code));
  return OpenedRecording{std::move(reader), std::move(stacks)};
}

std::vector<std::string> GapsOf(const RecordingReader& recording) {
  std::vector<std::string> gaps;
  const bool is_damaged = !recording.problem().empty();
  if (is_damaged) gaps.push_back(recording.problem());
  if (!recording.is_complete()) {
    const char* why = is_damaged ? "" : ": the process still writes it, or ended before it closed the file";
    gaps.push_back(Cat("the recording is incomplete", why, "; the last events may be missing"));
  }
  if (!recording.lost().empty()) {
    int64_t count = 0;
    for (const LostEvents& lost : recording.lost()) AddTo(count, lost.count);
    gaps.push_back(Cat("events are missing in ", recording.lost().size(), " intervals (", count,
                       "): the values are not exact from there on"));
  }
  if (absl::c_any_of(recording.tables().marks, [](const auto& mark) { return mark.name == internal::kOffMark; })) {
    gaps.emplace_back("events are missing: recording was turned off (the mark \"recording off\")");
  }
  if (!recording.tables().live_is_complete) {
    gaps.emplace_back("the list of the buffers that were live at the start is incomplete");
  }
  return gaps;
}

void WarnOfGaps(const std::string& command, const std::string& path, const RecordingReader& recording) {
  for (const std::string& gap : GapsOf(recording)) PrintError(command, Cat(path, ": ", gap));
}

}  // namespace hbmprof::tool
