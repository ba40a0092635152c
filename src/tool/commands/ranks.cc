// `hbmprof diff --ranks`: compares the ranks of one run.
#include <numeric>

#include "src/tool/commands/command.h"
#include "src/tool/profile/libraries.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/sums/rank_table.h"
#include "src/tool/util/terminal.h"

namespace hbmprof::tool {
namespace {

// The name for the call stack in --by.
constexpr char kByStack[] = "stack";

struct ComparedRanks {
  SampleType type;
  std::vector<std::string> by;  // labels
  bool by_stack = false;
  RankTable::Result table;
};

// Reads the profiles in parts, so that only one part is in memory. The profiles of a part share their names, of which
// only the first one is compared with the known libraries. The first part has one profile, which has the sample type.
// Errors: those of ReadProfile and ApplyView, and kInvalidArgument for a label in --by that no sample has.
absl::StatusOr<ComparedRanks> CompareRanks(const RanksOptions& options) {
  constexpr size_t kPart = 64;
  ComparedRanks result;
  result.by = options.by;
  EraseIf(result.by, [](const std::string& key) { return key == kByStack; });
  result.by_stack = options.by.empty() || result.by.size() < options.by.size();
  RankTable table(result.by, result.by_stack);
  // Without --type, the ranks are compared by the bytes in use, but by their peaks if those are more than twice the
  // bytes in use: then the profiles were made after the ranks had freed their memory. What only the driver knows, which
  // --by library shows, has no peak.
  constexpr char kPeak[] = "peak_space";
  std::optional<RankTable> peaks;
  const bool by_library = absl::c_linear_search(result.by, kLibraryLabel);
  if (options.type.empty() && !by_library) peaks.emplace(result.by, result.by_stack);
  std::vector<std::string> missing = result.by;  // labels that no sample has so far
  absl::Status missing_status;
  Progress progress(options.files.size(), "files read");
  for (size_t next = 0; next < options.files.size();) {
    const size_t end = next == 0 ? 1 : std::min(next + kPart, options.files.size());
    const auto read = [&]() -> absl::StatusOr<std::optional<ProfileSet::Named>> {
      if (next == end) return std::nullopt;
      const std::string& source = options.files[next++];
      ASSIGN_OR_RETURN(RawProfile raw, ReadProfile(source));
      progress.Advance(1);
      return ProfileSet::Named{source, std::move(raw)};
    };
    ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::ReadEach(read));
    if (by_library) AddUnaccounted(profiles);
    RETURN_IF_ERROR(ApplyView("diff", options, profiles));
    EraseIf(missing, [&](const std::string& key) { return CheckLabels(profiles, {key}).ok(); });
    missing_status = CheckLabels(profiles, missing);
    ASSIGN_OR_RETURN(size_t type, profiles.TypeNamed(end == 1 ? options.type : result.type.type));
    // Several profiles are compared by the bytes in use, as in ProfileSet::ReadEach.
    if (end == 1 && options.type.empty() && options.files.size() > 1 && profiles.types()[type].type == kPeak) {
      type = profiles.FindType("inuse_space").value_or(type);
    }
    const std::optional<size_t> peak = profiles.FindType(kPeak);
    if (!peak.has_value() || profiles.types()[type].type != "inuse_space") peaks.reset();
    if (peaks.has_value()) peaks->Add(profiles, *peak);
    const SampleType& found = profiles.types()[type];
    if (end == 1) result.type = found;
    if (found.unit != result.type.unit) {
      return InvalidArgument(profiles.files()[0].path, ": ", found.type, " is in ", found.unit, ", but in ",
                             options.files[0], " in ", result.type.unit, "; such profiles cannot be compared");
    }
    table.Add(profiles, type);
  }
  if (!missing.empty()) return missing_status;
  result.table = table.Take();
  if (!peaks.has_value()) return result;
  RankTable::Result of_peaks = peaks->Take();
  const auto total = [](const RankTable::Result& of) {
    return std::accumulate(of.ranks.begin(), of.ranks.end(), 0.0, [](double sum, const RankTable::Rank& rank) {
      return sum + static_cast<double>(rank.total);
    });
  };
  if (total(of_peaks) <= 2 * total(result.table)) return result;
  result.type.type = kPeak;
  result.table = std::move(of_peaks);
  return result;
}

using RankRow = RankTable::Row;

RowFields<RankRow> FieldsOf(const RanksOptions& options, const ComparedRanks& compared) {
  const RankTable::Result& table = compared.table;
  using Member = std::pair<size_t, int64_t> RankRow::*;
  const auto size = [&](int64_t value) { return FormatValue(value, compared.type.unit, options.exact); };
  const auto rank_of = [&table](Member member) {
    return [&table, member](const RankRow& row) { return table.ranks[(row.*member).first].name; };
  };
  const auto value_of = [size](Member member) {
    return [size, member](const RankRow& row) { return size((row.*member).second); };
  };
  const auto json_of = [&table](Member member) {
    return [&table, member](const RankRow& row) -> Json {
      return {{"rank", table.ranks[(row.*member).first].name}, {"value", (row.*member).second}};
    };
  };
  const auto change = [&](const RankRow& row) {
    return FormatChange(row.outlier.second - row.median, compared.type.unit, options.exact);
  };
  RowFields<RankRow> fields = {{"rank", 'r', rank_of(&RankRow::outlier), "outlier", json_of(&RankRow::outlier)},
                               {"differs by", 'r', change, "", nullptr},
                               {"median", 'r', [size](const RankRow& row) { return size(row.median); }, "median",
                                [](const RankRow& row) { return row.median; }},
                               {"smallest", 'r', value_of(&RankRow::smallest), "smallest", json_of(&RankRow::smallest)},
                               {"in", 'r', rank_of(&RankRow::smallest), "", nullptr},
                               {"largest", 'r', value_of(&RankRow::largest), "largest", json_of(&RankRow::largest)},
                               {"in", 'r', rank_of(&RankRow::largest), "", nullptr},
                               {"ranks", 'r', [](const RankRow& row) { return std::to_string(row.rank_count); },
                                "rank_count", [](const RankRow& row) { return row.rank_count; }}};
  AddLabelFields(compared.by, fields);
  if (!compared.by_stack) return fields;
  const auto frames_of = [&table, wanted = options.frames](const RankRow& row) {
    std::vector<ProfileSet::ShownFrame> frames;
    const size_t shown = ShownOf(wanted, row.frame_count);
    for (size_t i = 0; i < shown; ++i) frames.push_back(table.frames[row.frames[i]]);
    return frames;
  };
  const auto text = [frames_of](const RankRow& row) {
    const std::string line =
        absl::StrJoin(frames_of(row), " < ", [](std::string* out, const auto& frame) { *out += frame.name; });
    return line.empty() ? "[no stack]" : line;
  };
  const auto json = [frames_of](const RankRow& row) {
    Json stack = Json::array();
    for (const auto& frame : frames_of(row)) stack.push_back({{"function", frame.name}, {"where", frame.Position()}});
    return stack;
  };
  fields.push_back({"call stack", 'l', text, "stack", json});
  return fields;
}

// `rows`: those that are not equal in all ranks. `equal`: the number of the others.
void PrintRanksJson(const RanksOptions& options, const ComparedRanks& compared, const std::vector<RankRow>& rows,
                    size_t equal) {
  Json json = {{"version", kJsonVersion}, {"type", compared.type.type}, {"unit", compared.type.unit}};
  Json& all = json["ranks"] = Json::array();
  for (const RankTable::Rank& rank : compared.table.ranks) {
    all.push_back({{"rank", rank.name}, {"total", rank.total}, {"files", rank.files}});
  }
  json["equal_rows"] = equal;
  AddRows("rows", rows, FieldsOf(options, compared), options.rows, json);
  Print(ToText(json));
}

void PrintRanksText(const RanksOptions& options, const ComparedRanks& compared, const std::vector<RankRow>& rows,
                    size_t equal) {
  const std::vector<RankTable::Rank>& ranks = compared.table.ranks;
  const auto size = [&](int64_t value) { return FormatValue(value, compared.type.unit, options.exact); };
  const auto [least, most] =
      absl::c_minmax_element(ranks, [](const auto& a, const auto& b) { return a.total < b.total; });
  std::string head = Cat(ranks.size(), ranks.size() == 1 ? " rank" : " ranks");
  if (compared.table.world_size > static_cast<int64_t>(ranks.size())) {
    head += Cat(" of ", compared.table.world_size, " (the others have no profile here)");
  }
  PrintVisible(Cat(Visible(Cat(head, ": ", compared.type.type, " from ", size(least->total), " (rank ", least->name,
                               ") to ", size(most->total), " (rank ", most->name, ")")),
                   "\n\n"));
  if (!rows.empty()) PrintVisible(TableOf(rows, FieldsOf(options, compared), options.rows));
  if (equal == 0) return;
  const char* verb = equal == 1 ? "is" : "are";
  Print(Cat(equal, equal == 1 ? " row" : " rows", rows.empty() ? ", which " : " ", verb, " equal in all ranks\n"));
}

}  // namespace

absl::StatusOr<int> RunRanks(const RanksOptions& options) {
  RETURN_IF_ERROR(CheckView(options));
  ASSIGN_OR_RETURN(const ComparedRanks compared, CompareRanks(options));
  if (compared.table.left_out > 0) {
    PrintError("diff", Cat("only the last profile of each process counts: ",
                           options.files.size() - compared.table.left_out, " of ", options.files.size()));
  }
  std::vector<RankRow> rows = compared.table.rows;
  EraseIf(rows, [](const RankRow& row) { return row.smallest.second == row.largest.second; });
  const size_t equal = compared.table.rows.size() - rows.size();
  options.json ? PrintRanksJson(options, compared, rows, equal) : PrintRanksText(options, compared, rows, equal);
  return kSuccess;
}

}  // namespace hbmprof::tool
