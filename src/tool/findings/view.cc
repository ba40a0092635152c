// The renderings of findings.
#include <cmath>

#include "src/tool/findings/findings.h"
#include "src/tool/profile/series.h"

namespace hbmprof::tool {
namespace {

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
  std::vector<std::pair<std::string, std::string>> reasons = finding.unknown;
  const auto number_of = [&](const char* key, const std::optional<double>& value) {
    json[key] = WholeJson(value);
    if (value.has_value() && json[key].is_null()) reasons.emplace_back(key, "it is too large");
  };
  json["bytes"] = finding.bytes.has_value() ? Json(*finding.bytes) : Json();
  number_of("per_second", finding.per_second);
  number_of("per_count", finding.per_count);
  if (finding.per_count.has_value()) json["counter"] = finding.counter;
  number_of("seconds_to_limit", finding.seconds_to_limit);
  // Reasons that are equal are written once.
  std::vector<std::pair<std::string, Json>> unknown;
  for (const auto& [name, why] : reasons) {
    const auto same = absl::c_find_if(unknown, [&why = why](const auto& entry) { return entry.second == why; });
    if (same == unknown.end()) {
      unknown.emplace_back(name, why);
    } else {
      same->first += "," + name;
    }
  }
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
    Json& entry = memories.emplace_back(Json{{"name", memory.name}, {"in_use", memory.in_use}, {"peak", memory.peak}});
    entry["limit"] = memory.limit.has_value() ? Json(*memory.limit) : Json();
    Json& parts = entry["parts"] = Json::object();
    for (const auto& [name, bytes] : memory.parts) parts[name] = bytes;
  }
  json["trust"] = {{"recording", findings.is_recording},           {"since_start", findings.is_since_start},
                   {"all_freed", findings.is_all_freed},           {"dropped", findings.dropped},
                   {"growth_judged", findings.not_judged.empty()}, {"problems", findings.problems}};
  if (!findings.notes.empty()) json["trust"]["notes"] = findings.notes;
  if (!findings.not_judged.empty()) json["trust"]["not_judged"] = findings.not_judged;
  return json;
}

std::string FindingText(const Finding& finding, size_t number) {
  const bool is_sure = finding.sure == Sure::kHigh;
  const Tone tone =
      finding.code == FindingCode::kLeak || finding.code == FindingCode::kOutOfMemory ? Tone::kGrowth : Tone::kWarning;
  std::string text =
      Cat(Colored(Cat(number, ". ", FindingName(finding.code)), tone), "  ",
          finding.process.empty() ? "" : Visible(finding.process) + ": ", Visible(finding.sentence), "\n");
  if (!finding.callers.empty()) {
    text +=
        Cat("   at ",
            Visible(Cat(finding.position, finding.position.empty() ? "" : ", ", "called by ", finding.callers)), "\n");
  }
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
                memory.limit.has_value() ? " of " + Bytes(*memory.limit) : "", " in use, peak ", Bytes(memory.peak));
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
  std::string text = "trust: ";
  if (findings.problems.empty())
    text += Cat("complete since ", findings.is_since_start ? "the start" : "hbmprof was attached", "; ");
  for (size_t i = 0; i < findings.problems.size() && i < 3; ++i) text += Visible(findings.problems[i]) + "; ";
  text += Cat(findings.dropped, " dropped; recording ", findings.is_recording ? "on" : "OFF");
  if (findings.is_all_freed) text += "; all memory was freed before the end, so what was kept until then is not seen";
  if (!findings.not_judged.empty()) text += Cat("; growth NOT judged: ", Visible(findings.not_judged));
  text += "\n";
  for (const std::string& note : findings.notes) text += Cat("note: ", Visible(note), "\n");
  return text;
}

}  // namespace hbmprof::tool
