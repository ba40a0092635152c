// The memory of a program by its phases, such as those of a server that loads a model and then serves requests.
#include "src/tool/findings/findings.h"
#include "src/tool/profile/labels.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kShownPhases = 8;
constexpr size_t kShownLibraries = 3;

}  // namespace

std::vector<PhaseUse> PhasesOf(const ProfileSet& profiles) {
  const ProfileSet::File& now = profiles.files().back();
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
    if (phase.in_use > 0 || phase.estimated.has_value()) phases.push_back(std::move(phase));
  }
  absl::c_stable_sort(phases, [](const PhaseUse& a, const PhaseUse& b) { return a.in_use > b.in_use; });
  if (absl::c_all_of(phases, [](const PhaseUse& phase) { return phase.name.empty(); })) phases.clear();
  return phases;
}

std::string PhasesText(const std::vector<PhaseUse>& phases) {
  const auto libraries = [](const PhaseUse& phase) {
    const size_t shown = std::min(kShownLibraries, phase.libraries.size());
    std::string text;
    for (size_t i = 0; i < shown; ++i) {
      const auto& [name, bytes] = phase.libraries[i];
      text += Cat(i == 0 ? "" : ", ", name, " ", Bytes(bytes));
    }
    return Cat(text, shown < phase.libraries.size() ? ", ..." : "");
  };
  const RowFields<PhaseUse> fields = {
      {"phase", 'l', [](const PhaseUse& phase) { return phase.name.empty() ? "-" : phase.name; }},
      {"estimated", 'r', [](const PhaseUse& phase) { return phase.estimated ? Bytes(*phase.estimated) : "-"; }},
      {"in use", 'r', [](const PhaseUse& phase) { return Bytes(phase.in_use); }},
      {"libraries", 'l', libraries}};
  return phases.empty() ? "" : TableOf(phases, fields, kShownPhases);
}

Json PhasesJson(const std::vector<PhaseUse>& phases) {
  Json list = Json::array();
  for (size_t i = 0; i < std::min(kShownPhases, phases.size()); ++i) {
    Json libraries = Json::object();
    for (const auto& [name, bytes] : phases[i].libraries) {
      if (libraries.size() < kShownLibraries) libraries[name] = bytes;
    }
    list.push_back({{"phase", phases[i].name},
                    {"estimated", OrNull(phases[i].estimated)},
                    {"in_use", phases[i].in_use},
                    {"libraries", std::move(libraries)}});
  }
  return list;
}

}  // namespace hbmprof::tool
