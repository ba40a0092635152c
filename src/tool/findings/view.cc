// The renderings of findings.
#include <cmath>

#include "src/tool/findings/findings.h"
#include "src/tool/profile/series.h"

namespace hbmprof::tool {
namespace {

constexpr char kNotOurs[] = "not a profile of hbmprof: it states no peak and no limit, and not what it lacks";

// Returns the nearest whole number; null without a value and for one that an int64 cannot hold.
Json WholeJson(const std::optional<double>& value) {
  constexpr double kBound = 9e18;
  return value.has_value() && std::fabs(*value) < kBound ? Json(std::llround(*value)) : Json();
}

}  // namespace

Json FindingJson(const Finding& finding, size_t number) {
  Json json = {{"code", FindingName(finding.code)}, {"rank", number}, {"sure", SureName(finding.sure)}};
  const auto text = [&json](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  text("process", finding.process);
  text("memory", finding.memory);
  text("function", finding.function);
  text("where", finding.position);
  text("callers", finding.callers);
  if (!finding.labels.empty()) {
    json["labels"] = ObjectOf({finding.labels.begin(), finding.labels.end()});
  }
  // Reasons that are equal are written once.
  std::vector<std::pair<std::string, Json>> unknown;
  const auto number_of = [&](const char* key, const Json& value, bool is_known) {
    json[key] = value;
    if (!value.is_null()) return;
    const Json why = is_known ? "it is too large" : ValueOr(finding.unknown, key);
    const auto same = absl::c_find_if(unknown, [&](const auto& entry) { return entry.second == why; });
    if (same != unknown.end()) {
      same->first += Cat(",", key);
    } else {
      unknown.emplace_back(key, why);
    }
  };
  const auto rounded = [&](const char* key, const std::optional<double>& value) {
    number_of(key, WholeJson(value), value.has_value());
  };
  number_of("bytes", OrNull(finding.bytes), false);
  rounded("per_second", finding.per_second);
  rounded("per_count", finding.per_count);
  if (finding.per_count.has_value()) json["counter"] = finding.counter;
  rounded("seconds_to_limit", finding.seconds_to_limit);
  if (finding.code == FindingCode::kFullSoon) rounded("seconds_at_load", finding.seconds_at_load);
  if (finding.code == FindingCode::kIdlePool) number_of("returnable", OrNull(finding.returnable), false);
  if (finding.is_advice) json["advice"] = true;
  if (!unknown.empty()) json["unknown"] = ObjectOf(std::move(unknown));
  text("sentence", finding.sentence);
  text("evidence", finding.evidence);
  text("action", finding.action);
  text("next", finding.next);
  return json;
}

Json SourceJson(const Findings& findings) {
  Json json = {{"name", findings.name}};
  json["seconds"] = WholeJson(findings.seconds);
  json["profiles"] = findings.dumps;
  Json& memories = json["memories"] = Json::array();
  for (const MemoryUse& memory : findings.memories) {
    Json& entry = memories.emplace_back(Json{{"name", memory.name}, {"in_use", memory.in_use}});
    entry["peak"] = OrNull(memory.peak);
    entry["limit"] = OrNull(memory.limit);
    Json& parts = entry["parts"] = Json::object();
    for (const auto& [name, bytes] : memory.parts) parts[name] = bytes;
  }
  AddPhases(findings.phases, json);
  const auto of_ours = [&](Json value) { return findings.is_ours ? std::move(value) : Json(); };
  json["trust"] = {{"recording", of_ours(findings.off_since.empty())},
                   {"since_start", of_ours(findings.extent.empty() && findings.off_since.empty())},
                   {"all_freed", findings.is_all_freed},
                   {"dropped", of_ours(findings.dropped)},
                   {"growth_judged", findings.not_judged.empty()},
                   {"problems", findings.problems}};
  if (!findings.is_ours) json["trust"]["unknown"] = {{"recording,since_start,dropped,peak,limit", kNotOurs}};
  if (!findings.notes.empty()) json["trust"]["notes"] = findings.notes;
  if (!findings.not_judged.empty()) json["trust"]["not_judged"] = findings.not_judged;
  return json;
}

Json PageJson(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings.findings) {
    if (!finding.is_minor) list.push_back(FindingJson(finding, list.size() + 1));
  }
  const bool is_judged = findings.not_judged.empty();
  const std::string trust = Cat(list.empty() ? Cat(NoFindingText(is_judged), ". ") : "", TrustText(findings));
  return {{"findings", std::move(list)}, {"trust", trust}};
}

std::string FindingText(const Finding& finding, size_t number) {
  const bool is_sure = finding.sure == Sure::kHigh;
  const Tone tone =
      finding.code == FindingCode::kLeak || finding.code == FindingCode::kOutOfMemory ? Tone::kGrowth : Tone::kWarning;
  std::string text =
      Cat(Colored(Cat(number, finding.is_advice ? ". advice: " : ". ", FindingName(finding.code)), tone), "  ",
          finding.process.empty() ? "" : Visible(finding.process) + ": ", Visible(finding.sentence), "\n");
  const std::string callers = finding.callers.empty() ? "" : "called by " + finding.callers;
  const std::string at = Cat(finding.position, finding.position.empty() || callers.empty() ? "" : ", ", callers);
  if (!at.empty() && finding.stack.has_value()) text += Cat("   at ", Visible(at), "\n");
  return Cat(text, "   why: ", Visible(finding.evidence), " (",
             is_sure ? "sure" : "sure: ", is_sure ? "" : SureName(finding.sure), ")\n   do: ", Visible(finding.action),
             "\n   next: ", Visible(finding.next), "\n");
}

std::string HeadText(const Findings& findings) {
  std::string text = Visible(findings.name);
  if (findings.seconds.has_value()) text += Cat(", ", FormatDuration(*findings.seconds));
  text += ":";
  for (size_t i = 0; i < findings.memories.size(); ++i) {
    const MemoryUse& memory = findings.memories[i];
    text += Cat(findings.memories.size() == 1 ? " " : "\n  ", Visible(memory.name), " ", Bytes(memory.in_use),
                memory.limit.has_value() ? " of " + Bytes(*memory.limit) : "", " in use",
                memory.peak.has_value() ? ", recorded peak " + Bytes(*memory.peak) : "");
    for (size_t p = 0; p < memory.parts.size(); ++p) {
      text += Cat(p == 0 ? ": " : ", ", Bytes(memory.parts[p].second), " ", Visible(memory.parts[p].first));
    }
  }
  return text + (findings.memories.empty() ? " no memory was recorded\n" : "\n");
}

const char* NoFindingText(bool is_judged) {
  return is_judged ? "nothing is wrong, as far as the data show" : "no finding, but not all could be judged";
}

std::string TrustText(const Findings& findings) {
  constexpr size_t kMost = 3;
  const std::vector<std::string>& problems = findings.problems;
  std::vector<std::string> parts(problems.begin(),
                                 problems.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, problems.size())));
  if (findings.is_ours) {
    const bool is_recording = findings.off_since.empty();
    if (problems.empty() && is_recording) {
      parts.push_back(findings.extent.empty() ? "complete since the start" : findings.extent);
    }
    parts.push_back(Cat(findings.dropped, " dropped"));
    parts.push_back(is_recording ? "recording on" : Cat("recording OFF since ", findings.off_since));
  } else {
    parts.emplace_back(kNotOurs);
  }
  if (!findings.not_judged.empty()) parts.push_back("growth NOT judged: " + findings.not_judged);
  std::string text = Cat("trust: ", Visible(absl::StrJoin(parts, "; ")), "\n");
  for (const std::string& note : findings.notes) text += Cat("note: ", Visible(note), "\n");
  return text;
}

}  // namespace hbmprof::tool
