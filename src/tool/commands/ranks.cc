// `hbmprof diff --ranks`: compares the ranks of one run.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "src/tool/commands/command.h"
#include "src/tool/profile/libraries.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/sums/rank_table.h"
#include "src/tool/sums/sums_view.h"
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
  std::copy_if(options.by.begin(), options.by.end(), std::back_inserter(result.by),
               [](const std::string& key) { return key != kByStack; });
  result.by_stack = options.by.empty() || result.by.size() < options.by.size();
  RankTable table(result.by, result.by_stack);
  // Without --type, the ranks are compared by the bytes in use, but by their peaks if those are more than twice the
  // bytes in use: then the profiles were made after the ranks had freed their memory. What only the driver knows, which
  // --by library shows, has no peak.
  constexpr char kPeak[] = "peak_space";
  std::optional<RankTable> peaks;
  if (options.type.empty() && std::count(result.by.begin(), result.by.end(), kLibraryLabel) == 0) {
    peaks.emplace(result.by, result.by_stack);
  }
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
    if (std::count(result.by.begin(), result.by.end(), kLibraryLabel) > 0) AddUnaccounted(profiles);
    RETURN_IF_ERROR(ApplyView("diff", options, profiles));
    missing.erase(std::remove_if(missing.begin(), missing.end(),
                                 [&](const std::string& key) { return CheckLabels(profiles, {key}).ok(); }),
                  missing.end());
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
      return absl::InvalidArgumentError(Cat(profiles.files()[0].path, ": ", found.type, " is in ", found.unit,
                                            ", but in ", options.files[0], " in ", result.type.unit,
                                            "; such profiles cannot be compared"));
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

// Returns the functions of the row, innermost first: at most `frames` (0: all), and as many as fit `width`, but at
// least one.
std::string StackInLine(const RankTable::Result& table, const RankTable::Row& row, size_t frames, size_t width) {
  constexpr std::string_view kBetween = " < ";
  std::string text;
  frames = frames == 0 ? row.frame_count : std::min(frames, row.frame_count);
  for (size_t i = 0; i < frames; ++i) {
    const std::string& name = table.frames[row.frames[i]].name;
    if (i > 0 && text.size() + kBetween.size() + name.size() > width) break;
    text += Cat(i == 0 ? "" : kBetween, name);
  }
  return text.empty() ? "[no stack]" : text;
}

// Returns how many columns of the terminal a table with these lines leaves for one more column; SIZE_MAX without a
// terminal.
size_t WidthBeside(const std::string& align, const std::vector<std::vector<std::string>>& lines) {
  if (TerminalColumns() == 0) return SIZE_MAX;
  Table table(align);
  for (const std::vector<std::string>& cells : lines) table.Add(cells);
  size_t taken = 0;
  for (const absl::string_view line : absl::StrSplit(table.Text(), '\n')) taken = std::max(taken, line.size() + 2);
  return TerminalColumns() - std::min(TerminalColumns(), taken);
}

void PrintRanksJson(const RanksOptions& options, const ComparedRanks& compared) {
  const std::vector<RankTable::Rank>& ranks = compared.table.ranks;
  Json json = {{"version", kJsonVersion}, {"type", compared.type.type}, {"unit", compared.type.unit}};
  Json& all = json["ranks"] = Json::array();
  for (const RankTable::Rank& rank : ranks) {
    all.push_back({{"rank", rank.name}, {"total", rank.total}, {"files", rank.files}});
  }
  using Row = RankTable::Row;
  const auto of_rank = [&ranks](std::pair<size_t, int64_t> Row::*value) {
    return [&ranks, value](const Row& row) -> Json {
      return {{"rank", ranks[(row.*value).first].name}, {"value", (row.*value).second}};
    };
  };
  RowFields<Row> columns = {{"", 'l', nullptr, "outlier", of_rank(&Row::outlier)},
                            {"", 'l', nullptr, "median", [](const Row& row) { return row.median; }},
                            {"", 'l', nullptr, "smallest", of_rank(&Row::smallest)},
                            {"", 'l', nullptr, "largest", of_rank(&Row::largest)},
                            {"", 'l', nullptr, "rank_count", [](const Row& row) { return row.rank_count; }}};
  if (!compared.by.empty()) {
    columns.push_back({"", 'l', nullptr, "labels", [&](const Row& row) {
                         Json labels = Json::object();
                         for (size_t i = 0; i < compared.by.size(); ++i) labels[compared.by[i]] = row.labels[i];
                         return labels;
                       }});
  }
  if (compared.by_stack) {
    columns.push_back({"", 'l', nullptr, "stack", [&](const Row& row) {
                         Json stack = Json::array();
                         const size_t shown = ShownOf(options.frames, row.frame_count);
                         for (size_t i = 0; i < shown; ++i) {
                           const ProfileSet::ShownFrame& frame = compared.table.frames[row.frames[i]];
                           stack.push_back({{"function", frame.name}, {"where", frame.Position()}});
                         }
                         return stack;
                       }});
  }
  std::vector<Row> rows = compared.table.rows;
  EraseIf(rows, [](const Row& row) { return row.smallest.second == row.largest.second; });
  json["equal_rows"] = compared.table.rows.size() - rows.size();
  AddRows("rows", rows, columns, options.rows, json);
  Print(ToText(json));
}

void PrintRanksText(const RanksOptions& options, const ComparedRanks& compared) {
  const std::vector<RankTable::Rank>& ranks = compared.table.ranks;
  const auto size = [&](int64_t value) { return FormatValue(value, compared.type.unit, options.exact); };
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.total < b.total; });
  std::string head = Cat(ranks.size(), ranks.size() == 1 ? " rank" : " ranks");
  if (compared.table.world_size > static_cast<int64_t>(ranks.size())) {
    head += Cat(" of ", compared.table.world_size, " (the others have no profile here)");
  }
  PrintVisible(Cat(Visible(Cat(head, ": ", compared.type.type, " from ", size(least->total), " (rank ", least->name,
                               ") to ", size(most->total), " (rank ", most->name, ")")),
                   "\n\n"));
  std::string align(8, 'r');
  std::vector<std::string> cells = {"rank", "differs by", "median", "smallest", "in", "largest", "in", "ranks"};
  for (const std::string& key : compared.by) cells.push_back(key);
  align.resize(cells.size(), 'l');
  std::vector<std::vector<std::string>> lines = {std::move(cells)};
  // In the order of RankTable, the rows that are equal in all ranks are the last ones.
  const auto same = std::find_if(compared.table.rows.begin(), compared.table.rows.end(),
                                 [](const RankTable::Row& row) { return row.smallest.second == row.largest.second; });
  const auto different = static_cast<size_t>(same - compared.table.rows.begin());
  const size_t shown = ShownOf(options.rows, different);
  for (size_t i = 0; i < shown; ++i) {
    const RankTable::Row& row = compared.table.rows[i];
    const int64_t change = row.outlier.second - row.median;
    cells = {ranks[row.outlier.first].name,
             FormatChange(change, compared.type.unit, options.exact),
             size(row.median),
             size(row.smallest.second),
             ranks[row.smallest.first].name,
             size(row.largest.second),
             ranks[row.largest.first].name,
             std::to_string(row.rank_count)};
    for (const std::string& label : row.labels) cells.push_back(label.empty() ? "-" : label);
    lines.push_back(std::move(cells));
  }
  if (compared.by_stack) {
    const size_t width = WidthBeside(align, lines);
    align += 'l';
    lines[0].emplace_back("call stack");
    for (size_t i = 0; i < shown; ++i) {
      lines[i + 1].push_back(StackInLine(compared.table, compared.table.rows[i], options.frames, width));
    }
  }
  Table table(align);
  for (std::vector<std::string>& line : lines) table.Add(std::move(line));
  if (different > 0) PrintVisible(table.Text(TerminalColumns()) + MoreRows(shown, different));
  const size_t equal = compared.table.rows.size() - different;
  if (equal == 0) return;
  const char* verb = equal == 1 ? "is" : "are";
  Print(Cat(equal, equal == 1 ? " row" : " rows", different == 0 ? ", which " : " ", verb, " equal in all ranks\n"));
}

}  // namespace

absl::StatusOr<int> RunRanks(const RanksOptions& options) {
  RETURN_IF_ERROR(CheckView(options));
  ASSIGN_OR_RETURN(const ComparedRanks compared, CompareRanks(options));
  if (compared.table.left_out > 0) {
    PrintError("diff", Cat("only the last profile of each process counts: ",
                           options.files.size() - compared.table.left_out, " of ", options.files.size()));
  }
  if (options.json) {
    PrintRanksJson(options, compared);
  } else {
    PrintRanksText(options, compared);
  }
  return kSuccess;
}

}  // namespace hbmprof::tool
