#include "src/tool/recording/stacks.h"

#include <cstdlib>

#include "hbmprof/pprof.h"
#include "src/core/pool_samples.h"
#include "src/tool/profile/own_code.h"
#include "src/tool/torch/torch_snapshot.h"
#include "src/tool/util/text.h"

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
  return ProfileSet::Parse({{"the recording", std::move(bytes)}});
}

}  // namespace

absl::StatusOr<RecordedStacks> RecordedStacks::Make(const std::string& path, const RecordingTables& tables,
                                                    const std::vector<std::string>& known, bool own_code) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(known));
  RecordedStacks result;
  result.stacks_.resize(tables.names.stacks.size() + RecordedPools(tables).all().size());
  result.own_frames_.resize(result.stacks_.size());
  if (result.stacks_.empty()) return result;
  ASSIGN_OR_RETURN(const ProfileSet profiles, In(path, ProfileOfStacks(tables)));
  // By location: its frames, and what they belong to.
  struct Location {
    uint32_t first_frame = 0;
    std::vector<internal::FrameOwner> owners;
  };
  std::vector<Location> locations(profiles.locations().size());
  for (uint64_t l = 0; l < locations.size(); ++l) {
    locations[l] = {static_cast<uint32_t>(result.frames_.size()), libraries.OwnersOf(profiles, l)};
    for (Frame& frame : profiles.ShownLocation(l)) result.frames_.push_back(std::move(frame));
  }
  const auto none = static_cast<uint32_t>(result.frames_.size());
  result.frames_.push_back({"[no stack]", "", 0, false});
  for (std::vector<uint32_t>& stack : result.stacks_) stack.assign(1, none);
  result.own_frames_.assign(result.stacks_.size(), none);
  for (const ProfileSet::Sample& sample : profiles.files()[0].samples) {
    const auto number = static_cast<size_t>(std::atoll(profiles.LabelText(sample.labels, kStackLabel).c_str()) - 1);
    std::vector<uint32_t>& stack = result.stacks_[number];
    stack.clear();
    uint32_t own = none;
    internal::FrameOwner owner;
    int rank = internal::kOwnRanks;
    for (const uint64_t* l = profiles.stacks().begin(sample.stack); l != profiles.stacks().end(sample.stack); ++l) {
      for (uint32_t i = 0; i < locations[*l].owners.size(); ++i) {
        const uint32_t frame = locations[*l].first_frame + i;
        const internal::FrameOwner& owner_of_frame = locations[*l].owners[i];
        if (internal::OwnRank(owner_of_frame.role) < rank) {
          own = frame;
          owner = owner_of_frame;
          rank = internal::OwnRank(owner.role);
        }
        stack.push_back(frame);
      }
    }
    if (stack.empty()) stack.push_back(none);
    result.own_frames_[number] = own_code ? own : stack.front();
    if (own_code && owner.role == internal::CodeRole::kOperator) {
      result.own_frames_[number] = static_cast<uint32_t>(result.frames_.size());
      Frame renamed = result.frames_[own];
      renamed.name = internal::OwnName(owner, renamed.name);
      result.frames_.push_back(std::move(renamed));
    }
  }
  return result;
}

absl::StatusOr<OpenedRecording> OpenRecording(const std::string& path, const std::vector<std::string>& known,
                                              bool own_code) {
  ASSIGN_OR_RETURN(std::unique_ptr<RecordingReader> reader, OpenWholeRecording(path));
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
  if (!recording.tables().live_is_complete) {
    gaps.emplace_back("the list of the buffers that were live at the start is incomplete");
  }
  return gaps;
}

void AddGaps(const RecordingReader& recording, Snapshot& snapshot) {
  for (std::string& gap : GapsOf(recording)) snapshot.warnings.push_back(std::move(gap));
}

void WarnOfGaps(const std::string& command, const std::string& path, const RecordingReader& recording) {
  for (const std::string& gap : GapsOf(recording)) PrintError(command, Cat(path, ": ", gap));
}

}  // namespace hbmprof::tool
