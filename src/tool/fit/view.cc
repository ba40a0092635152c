// The renderings of a fit.
#include <cmath>

#include "src/tool/fit/fit.h"

namespace hbmprof::tool {
namespace {

using Row = MemoryFit::Row;

int64_t Whole(double bytes) { return std::llround(std::clamp(bytes, -9e18, 9e18)); }
std::string BytesText(double bytes) { return Bytes(Whole(bytes)); }
std::string NumberText(double value) { return absl::StrFormat("%.10g", value); }

Json VerdictJson(const std::optional<FitVerdict>& verdict) {
  constexpr const char* kNames[] = {"fits", "undecided", "does not fit"};
  return verdict.has_value() ? Json(kNames[static_cast<size_t>(*verdict)]) : Json();
}

// Returns "batch x tokens".
std::string TermName(const Fit& fit, size_t term) {
  std::vector<std::string> factors;
  for (size_t c = 0; c < fit.counters.size(); ++c) {
    if ((term >> c & 1) != 0) factors.push_back(fit.counters[c]);
  }
  return absl::StrJoin(factors, " x ");
}

// Returns the terms that have half a byte or more at `fit.at`: smaller ones are errors of rounding.
std::vector<size_t> TermsIn(const Fit& fit, const std::vector<double>& terms) {
  std::vector<size_t> list;
  for (size_t term = 0; term < terms.size(); ++term) {
    if (std::fabs(terms[term] * TermAt(term, fit.at)) >= 0.5) list.push_back(term);
  }
  return list;
}

// Returns "17.20 GiB + 1.06 MiB x tokens".
std::string SumText(const Fit& fit, const std::vector<double>& terms) {
  std::string text;
  for (const size_t term : TermsIn(fit, terms)) {
    const double size = std::fabs(terms[term]);
    text += text.empty() ? (terms[term] < 0 ? "-" : "") : (terms[term] < 0 ? " - " : " + ");
    text += size < 1024 ? absl::StrFormat("%.4g B", size) : BytesText(size);
    if (term != 0) text += " x " + TermName(fit, term);
  }
  return text.empty() ? "0 B" : text;
}

const char* LawName(const Fit& fit, const Row& row) {
  if (row.law.terms.empty()) return "undecided";
  if (row.law.is_steps) return row.law.power > 0 ? "faster than a line" : "steps";
  const std::vector<size_t> terms = TermsIn(fit, row.law.terms);
  if (absl::c_any_of(terms, [](size_t term) { return (term & (term - 1)) != 0; })) return "product";
  return terms.empty() || terms.back() == 0 ? "constant" : "linear";
}

std::string MeasuredText(const std::vector<double>& measured) {
  const size_t left_out = std::max<size_t>(measured.size(), 6) - 6;
  const auto format = [](std::string* text, double bytes) { *text += BytesText(bytes); };
  return Cat(left_out > 0 ? "..., " : "",
             absl::StrJoin(measured.begin() + static_cast<std::ptrdiff_t>(left_out), measured.end(), ", ", format));
}

std::string LawText(const Fit& fit, const Row& row) {
  const std::string name = LawName(fit, row);
  if (!row.law.holds()) return Cat(name, ": ", MeasuredText(row.law.measured));
  return name == "constant" ? name : SumText(fit, row.law.terms);
}

double LargestResidual(const MemoryFit& memory) {
  double largest = 0;
  for (size_t r = 0; r < memory.predicted.size(); ++r) {
    if (memory.measured[r] <= 0) continue;
    largest = std::max(largest, std::fabs(memory.predicted[r] / memory.measured[r] - 1));
  }
  return largest;
}

// Returns the lines above the table.
std::string HeadText(const Fit& fit, const MemoryFit& memory) {
  std::vector<std::string> ranges;
  std::vector<std::string> full;
  for (size_t c = 0; c < fit.counters.size(); ++c) {
    const auto [least, most] =
        absl::c_minmax_element(fit.runs, [c](const Fit::Run& a, const Fit::Run& b) { return a.at[c] < b.at[c]; });
    ranges.push_back(Cat(fit.counters[c], "=", NumberText(least->at[c]), " to ", NumberText(most->at[c])));
    if (c >= memory.full_at.size() || !memory.full_at[c].has_value()) continue;
    full.push_back(Cat(fit.counters[c], "=", NumberText(std::floor(*memory.full_at[c]))));
  }
  const std::string measured = Cat(fit.runs.size(), " profiles, ", absl::StrJoin(ranges, ", "));
  const std::string name = Cat(memory.name, ": ", fit.type == "peak_space" ? "peak" : fit.type);
  if (!fit.undecided.empty()) {
    return Visible(Cat(name, " ", MeasuredText(memory.measured), " (", measured, ")")) + "\n" +
           Colored("undecided: " + Visible(fit.undecided), Tone::kWarning) + "\n";
  }
  const double steps = memory.steps;
  const std::string sum = Cat(BytesText(memory.at.bytes - steps), " + ", BytesText(steps), " of steps = ");
  std::string text =
      Visible(Cat(name, " = ", SumText(fit, memory.terms), steps > 0 ? " + steps (" : " (", measured,
                  absl::StrFormat(", largest residual %.1f %%)", 100 * LargestResidual(memory)))) +
      "\nat " +
      Visible(Cat(PointText(fit.counters, fit.at), ": ", steps > 0 ? sum : "", BytesText(memory.at.bytes), " (",
                  BytesText(memory.at.low), " to ", BytesText(memory.at.high), ")",
                  memory.limit ? Cat(" of ", Bytes(*memory.limit)) : ""));
  const Tone tone = memory.verdict == FitVerdict::kFits ? Tone::kPlain : Tone::kWarning;
  if (memory.verdict.has_value()) text += ": " + Colored(VerdictJson(memory.verdict).get<std::string>(), tone);
  return Cat(text, full.empty() ? "" : "; full at " + Visible(absl::StrJoin(full, " or ")), "\n");
}

Json ListJson(const std::vector<double>& bytes) {
  std::vector<int64_t> list(bytes.size());
  absl::c_transform(bytes, list.begin(), Whole);
  return list;
}

Json PointJson(const Fit& fit, const Point& point) {
  Json json = Json::object();
  for (size_t c = 0; c < fit.counters.size(); ++c) json[fit.counters[c]] = point[c];
  return json;
}

// Returns the bytes for each unit, by term.
Json TermsJson(const Fit& fit, const std::vector<double>& terms) {
  Json json = Json::object();
  for (const size_t term : TermsIn(fit, terms)) json[term == 0 ? "constant" : TermName(fit, term)] = terms[term];
  return json;
}

RowFields<Row> FieldsOf(const Fit& fit) {
  const auto function = [](const Row& row) { return row.function; };
  const auto position = [](const Row& row) { return row.position; };
  return {{"at " + PointText(fit.counters, fit.at), 'r', [](const Row& row) { return BytesText(row.bytes); }, "bytes",
           [](const Row& row) { return Whole(row.bytes); }},
          {"law", 'l', [&fit](const Row& row) { return LawText(fit, row); }, "law",
           [&fit](const Row& row) { return LawName(fit, row); }},
          {"", 'l', nullptr, "terms",
           [&fit](const Row& row) { return row.law.holds() ? TermsJson(fit, row.law.terms) : Json(); }},
          {"", 'l', nullptr, "measured",
           [](const Row& row) { return row.law.holds() ? Json() : ListJson(row.law.measured); }},
          {"function", 'l', function, "function", function},
          {"where", 'l', position, "where", position},
          {"", 'l', nullptr, "stacks", [](const Row& row) { return row.stacks; }}};
}

Json JsonOf(const Fit& fit, const MemoryFit& memory) {
  Json json = {{"name", memory.name}, {"limit", OrNull(memory.limit)}, {"measured", ListJson(memory.measured)}};
  json["verdict"] = VerdictJson(memory.verdict);
  if (!fit.undecided.empty()) return json;
  json.update({{"predicted", ListJson(memory.predicted)},
               {"largest_residual", LargestResidual(memory)},
               {"terms", TermsJson(fit, memory.terms)},
               {"steps", Whole(memory.steps)},
               {"bytes", Whole(memory.at.bytes)},
               {"low", Whole(memory.at.low)},
               {"high", Whole(memory.at.high)}});
  Json& full_at = json["full_at"] = Json::object();
  for (size_t c = 0; c < memory.full_at.size(); ++c) full_at[fit.counters[c]] = OrNull(memory.full_at[c]);
  return json;
}

}  // namespace

std::string PointText(const std::vector<std::string>& counters, const Point& point) {
  std::vector<std::string> texts;
  for (size_t c = 0; c < counters.size(); ++c) texts.push_back(Cat(counters[c], "=", NumberText(point[c])));
  return absl::StrJoin(texts, ", ");
}

void AddFit(const Fit& fit, size_t rows, Answer& answer) {
  const RowFields<Row> fields = FieldsOf(fit);
  answer.json.update({{"counters", fit.counters}, {"type", fit.type}});
  Json& runs = answer.json["runs"] = Json::array();
  for (const Fit::Run& run : fit.runs) runs.push_back({{"source", run.name}, {"values", PointJson(fit, run.at)}});
  answer.json.update({{"at", PointJson(fit, fit.at)}, {"verdict", VerdictJson(fit.verdict())}, {"notes", fit.notes}});
  if (!fit.undecided.empty()) answer.json["undecided"] = fit.undecided;
  Json& memories = answer.json["memories"] = Json::array();
  for (const MemoryFit& memory : fit.memories) {
    AddRows("rows", memory.rows, fields, rows, memories.emplace_back(JsonOf(fit, memory)));
    answer.text +=
        Cat(answer.text.empty() ? "" : "\n", HeadText(fit, memory), "\n", TableOf(memory.rows, fields, rows));
  }
  if (!fit.notes.empty()) answer.text += "\n";
  for (const std::string& note : fit.notes) answer.text += Cat("note: ", Visible(note), "\n");
}

}  // namespace hbmprof::tool
