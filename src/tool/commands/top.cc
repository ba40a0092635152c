// `hbmprof top`: shows which functions, lines or labels hold the memory, or the call tree.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/memory_limit.h"

namespace hbmprof::tool {
namespace {

struct TopOptions : SumsOptions {
  std::string interval = "2s";
  std::string callers;  // an expression
};

// Returns the lines above the rows. The files before `first` are not part of the answer.
std::string HeadText(const TopOptions& options, const SumsQuery& query, const Sums& sums, size_t first) {
  std::string text;
  for (size_t i = first; i < query.profiles.files().size(); ++i) {
    const ProfileSet::File& file = query.profiles.files()[i];
    text += Cat(Visible(file.path), "  ", FormatTime(file.time_nanos), "\n", DeviceLines(file, options.exact));
  }
  const int64_t sum = sums.sum()[1];
  const int64_t total = sums.total()[1];
  const std::string of = options.has_filter() || sum != total ? Cat(" of ", query.Text(total)) : "";
  return Cat(text, Visible(query.type_name), ": ", Visible(query.Text(sum)), Visible(of), "\n", FreedLine(query),
             query.trimmed ? kTrimmedText : "", "\n");
}

// A number of each row, by the labels and the name of the row.
using NumberByRow = std::map<std::pair<std::vector<std::string>, std::string>, int64_t>;

// Returns the changes of the rows from the first to the second file.
NumberByRow ChangesOf(const SumsQuery& query) {
  NumberByRow changes;
  for (const Sums::Row& row : Sums(query.profiles, {{0, 1}, {1, 2}}, query.type, query.grouping).Rows(false)) {
    changes[{row.labels, row.name}] = row.flat_change();
  }
  return changes;
}

// Returns how many seconds before the dump the oldest buffers of each row were born, at the most. Empty without the
// label of births, or for several files.
NumberByRow OldestBuffers(const SumsQuery& query) {
  NumberByRow oldest;
  const std::vector<ProfileSet::File>& files = query.profiles.files();
  const std::optional<int64_t> uptime = files.size() == 1 ? files[0].info.UptimeSeconds() : std::nullopt;
  if (!uptime.has_value()) return oldest;
  Grouping grouping = query.grouping;
  grouping.labels.emplace_back(kBirthLabel);
  for (Sums::Row& row : Sums(query.profiles, {{0, 1}}, query.type, grouping).Rows(false)) {
    const std::string birth = std::move(row.labels.back());
    row.labels.pop_back();
    int64_t seconds = 0;
    if (!absl::SimpleAtoi(birth, &seconds)) continue;
    int64_t& age = oldest[{std::move(row.labels), std::move(row.name)}];
    age = std::max(age, Minus(*uptime, seconds));
  }
  return oldest;
}

// Returns the columns of the rows. `changes`: since the start of the command; null: they are not shown.
RowFields<Sums::Row> ColumnsOf(const TopOptions& options, const SumsQuery& query, const Sums& sums,
                               const NumberByRow* changes) {
  const auto flat = [](const Sums::Row& row) { return row.flat[1]; };
  const auto cum = [](const Sums::Row& row) { return row.cum[1]; };
  const int64_t total = sums.total()[1];
  RowFields<Sums::Row> columns = {ValueField(query, "flat", flat), ShareField("flat%", total, flat)};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back(ValueField(query, "cum", cum));
    columns.push_back(ShareField("cum%", total, cum));
  }
  if (changes != nullptr) {
    const auto change = [&query, changes](const Sums::Row& row) {
      const int64_t value = ValueOr(*changes, std::pair(row.labels, row.name));
      return value == 0 ? "" : query.Change(value);
    };
    columns.push_back({"since start", 'r', change, "", nullptr});
  }
  const NumberByRow oldest = options.NeedsAges() ? OldestBuffers(query) : NumberByRow();
  if (!oldest.empty()) {
    const auto age_of = [oldest](const Sums::Row& row) {
      const auto found = oldest.find({row.labels, row.name});
      return found == oldest.end() ? Json() : Json(found->second);
    };
    const auto text = [age_of](const Sums::Row& row) {
      const Json age = age_of(row);
      return age.is_null() ? "-" : FormatDuration(age.get<double>());
    };
    columns.push_back({"oldest", 'r', text, "oldest_seconds", age_of});
  }
  AddNameFields(query.grouping, columns);
  return columns;
}

// Shows the table of a process again at each interval, until the process or the user ends it.
absl::StatusOr<int> RunLiveTop(const LiveProcess& process, TopOptions options, double seconds) {
  ASSIGN_OR_RETURN(const std::string first, QueryProcess(process.socket, "profile"));
  const std::string name = Cat(process.name, " (", process.id, ")");
  size_t counted = 0;
  for (std::string now = first;;) {
    if (now.size() > counted) CountInput(2 * (now.size() - counted));
    counted = std::max(counted, now.size());
    ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::Parse({{"first", first}, {name, now}}));
    ASSIGN_OR_RETURN(const SumsQuery query, MakeQuery("top", std::move(profiles), options));
    options.is_part = true;  // the warnings have been printed
    const Sums sums(query.profiles, {{1, 2}}, query.type, query.grouping);
    const NumberByRow changes = ChangesOf(query);
    const std::string head = HeadText(options, query, sums, 1);
    constexpr size_t kOtherLines = 3;  // the headings, the number of further rows, and the line of the cursor
    const size_t lines = static_cast<size_t>(absl::c_count(head, '\n')) + kOtherLines;
    const size_t fitting = std::max(TerminalRows(), lines + 1) - lines;
    const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
    const size_t shown = options.rows == 0 ? fitting : std::min(options.rows, fitting);
    PrintVisible(Cat("\033[H\033[2J", head, TableOf(rows, ColumnsOf(options, query, sums, &changes), shown)));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    absl::StatusOr<std::string> next = QueryProcess(process.socket, "profile");
    if (!next.ok()) {
      Print(Cat(name, " has ended, or does not answer\n"));
      return kSuccess;
    }
    now = *std::move(next);
  }
}

absl::StatusOr<int> RunTop(const TopOptions& options) {
  ASSIGN_OR_RETURN(const double seconds,
                   SecondsOf("--interval", options.interval, 0.1, 86400, "a time from 100ms to 24h"));
  if (!options.callers.empty() && options.tree) return InvalidArgument("--callers and --tree are two answers");
  if (!options.callers.empty()) return RunCallers(options, options.callers);
  if (options.files.size() == 1 && !options.json && !options.tree && !options.NeedsAges() &&
      IsTerminal(STDOUT_FILENO)) {
    ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.files[0]));
    if (process.has_value()) return RunLiveTop(*process, options, seconds);
  }
  ASSIGN_OR_RETURN(const SumsQuery query, ReadQuery("top", options.files, options));
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping);
  Json json = HeadJson(query, 0, sums.total()[1]);
  json["selected"] = sums.sum()[1];
  if (!options.json) PrintVisible(HeadText(options, query, sums, 0));
  const RowFields<Sums::Row> columns = ColumnsOf(options, query, sums, nullptr);
  if (options.tree) {
    ShowTree(query, 0, options.nodes(), sums.total()[1], options.json ? &json : nullptr);
  } else if (options.json) {
    AddRows("rows", sums.Rows(options.by_cum), columns, options.rows, json);
  } else {
    PrintVisible(TableOf(sums.Rows(options.by_cum), columns, options.rows));
  }
  if (options.json) Print(ToText(json));
  return IsOff(query.profiles) ? kFinding : kSuccess;
}

}  // namespace

Command AddTopCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("top", "Show what holds the memory, largest first");
  auto options = std::make_shared<TopOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Profiles, also processes and run.hbmrec@peak; those of several processes are added up")
      ->required();
  AddSumsOptions(*arguments, *options, true);
  arguments->add_option("--callers", options->callers,
                        "Show the callers and callees of the functions that match this expression; all frames");
  arguments->add_option("--older", options->older, "Only live buffers that are older than this time, such as 10m");
  arguments->add_option("--interval", options->interval, "On a terminal: refresh time; not with --tree or --older")
      ->capture_default_str();
  return {arguments,
          [options, arguments] {
            // A known library calls and is called, too.
            if (!options->callers.empty() && arguments->count("--own") == 0) options->own = false;
            return RunTop(*options);
          },
          true};
}

}  // namespace hbmprof::tool
