// The memory of a program by its phases, such as those of a server that loads a model and then serves requests.
#include "src/tool/findings/findings.h"
#include "src/tool/profile/labels.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kMostPhases = 8;
constexpr size_t kMostLibraries = 3;

RowFields<PhaseUse> Fields() {
  const auto libraries = [](const PhaseUse& phase) {
    const auto format = [](std::string* text, const auto& library) {
      *text += Cat(library.first, " ", Bytes(library.second));
    };
    return absl::StrJoin(phase.libraries, ", ", format);
  };
  const auto estimated = [](const PhaseUse& phase) { return phase.estimated ? Bytes(*phase.estimated) : "-"; };
  return {{"phase", 'l', [](const PhaseUse& phase) { return phase.name.empty() ? "-" : phase.name; }, "phase",
           &PhaseUse::name},
          {"estimated", 'r', estimated, "estimated", [](const PhaseUse& phase) { return OrNull(phase.estimated); }},
          {"in use", 'r', [](const PhaseUse& phase) { return Bytes(phase.in_use); }, "in_use", &PhaseUse::in_use},
          {"libraries", 'l', libraries, "libraries",
           [](const PhaseUse& phase) { return Json(std::map(phase.libraries.begin(), phase.libraries.end())); }}};
}

}  // namespace

std::vector<PhaseUse> PhasesOf(const ProfileSet& profiles, const ProfileSet::File& now) {
  const std::optional<size_t> type = profiles.FindType("inuse_space");
  std::map<std::string, PhaseUse> by_name;
  for (const Comment& estimate : now.info.estimates) {
    by_name[estimate.name.substr(sizeof(kEstimatePrefix) - 1)].estimated = estimate.Number("value");
  }
  std::map<std::pair<std::string, std::string>, int64_t> parts;  // by phase and library
  const ProfileSet::LabelGroups labels = profiles.GroupLabels({kPhaseLabel, kLibraryLabel, "kind"});
  for (size_t s = 0; s < now.samples.size() && type.has_value(); ++s) {
    const std::vector<std::string>& values = labels.values[labels.of_set[now.samples[s].labels]];
    if (values[2] != "pinned_host") AddTo(parts[{values[0], values[1]}], profiles.Value(now, s, *type));
  }
  for (const auto& [key, bytes] : parts) {
    PhaseUse& phase = by_name[key.first];
    AddTo(phase.in_use, bytes);
    if (bytes > 0) phase.libraries.emplace_back(key.second, bytes);
  }
  std::vector<PhaseUse> phases;
  for (auto& [name, phase] : by_name) {
    phase.name = name;
    absl::c_stable_sort(phase.libraries, [](const auto& a, const auto& b) { return a.second > b.second; });
    phase.libraries.resize(std::min(kMostLibraries, phase.libraries.size()));
    if (phase.in_use > 0 || phase.estimated.has_value()) phases.push_back(std::move(phase));
  }
  absl::c_stable_sort(phases, [](const PhaseUse& a, const PhaseUse& b) { return a.in_use > b.in_use; });
  if (absl::c_all_of(phases, [](const PhaseUse& phase) { return phase.name.empty(); })) phases.clear();
  phases.resize(std::min(kMostPhases, phases.size()));
  return phases;
}

std::string PhasesText(const std::vector<PhaseUse>& phases) {
  return phases.empty() ? "" : TableOf(phases, Fields(), 0);
}

void AddPhases(const std::vector<PhaseUse>& phases, Json& json) {
  if (!phases.empty()) AddRows("phases", phases, Fields(), 0, json);
}

}  // namespace hbmprof::tool
