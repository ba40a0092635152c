// `hbmprof timeline`: memory over time, from a recording.
#include <unistd.h>

#include "src/tool/commands/command.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/recording/timeline_data.h"

namespace hbmprof::tool {
namespace {

struct TimelineCommandOptions : TimelineOptions {
  std::string file;
  size_t rows = 0;  // 0: as many as fit
  bool json = false;
  bool exact = false;
  bool own = true;
  std::vector<std::string> known;
};

constexpr size_t kMaxRows = 100000;
constexpr size_t kChartHeight = 10;

double InSeconds(int64_t nanos) { return static_cast<double>(nanos) / 1e9; }
std::string Seconds(int64_t nanos) { return FormatSeconds(InSeconds(nanos)); }

std::string MarkText(const Timeline::Mark& mark, bool exact) {
  if (mark.kind == Timeline::MarkKind::kProfile) return Cat("profile ", mark.name);
  if (mark.kind == Timeline::MarkKind::kReport) return Cat("report ", mark.name);
  // The size is 0 if it is not known.
  const std::string size = mark.bytes == 0 ? "" : Cat(": ", Bytes(mark.bytes, exact));
  return Cat("out of memory", size, mark.memory.empty() ? "" : " of ", mark.memory);
}

std::string Optional(std::optional<int64_t> value, bool exact) {
  return value.has_value() ? Bytes(*value, exact) : "-";
}

std::string Summary(const Timeline& timeline, const Timeline::Memory& memory, bool exact) {
  return Visible(Cat(memory.name, ": peak ", Bytes(memory.peak, exact), " at ", Seconds(memory.peak_time), ", in use ",
                     Bytes(memory.end_in_use, exact), " at ", Seconds(timeline.duration),
                     memory.limit.has_value() ? Cat(", limit ", Bytes(*memory.limit, exact)) : "")) +
         "\n";
}

std::string HolderTable(const Timeline::Memory& memory, bool exact) {
  if (memory.holders.empty()) return "";
  Table table("rrll");
  table.Add({"at the peak", "share", "function", "where"});
  for (const FunctionSum& holder : memory.holders) {
    table.Add({Bytes(holder.bytes, exact), FormatPercent(holder.bytes, memory.peak), holder.function, holder.position});
  }
  return table.Text(TerminalColumns()) + MoreRows(memory.holders.size(), memory.holder_count, "--sites");
}

std::string MarksOf(const Timeline& timeline, size_t interval, bool exact) {
  std::string text;
  size_t count = 0;
  for (const Timeline::Mark& mark : timeline.marks) {
    if (timeline.IntervalOf(mark.time) != interval) continue;
    if (++count <= 2) text += Cat(text.empty() ? "" : "; ", MarkText(mark, exact));
  }
  return count > 2 ? Cat(text, "; ", count - 2, " more") : text;
}

std::string Rows(const Timeline& timeline, const Timeline::Memory& memory, bool exact) {
  const bool has_idle =
      absl::c_any_of(memory.intervals, [](const Timeline::Interval& interval) { return interval.idle != 0; });
  const bool has_driver = absl::c_any_of(
      memory.intervals, [](const Timeline::Interval& interval) { return interval.driver_in_use.has_value(); });
  std::vector<std::string> heading = {"from", "in use", "peak", "limit"};
  if (has_idle) heading.emplace_back("pool idle");
  if (has_driver) heading.insert(heading.end(), {"driver", "unaccounted"});
  heading.insert(heading.end(), memory.groups.begin(), memory.groups.end());
  std::string columns(heading.size(), 'r');
  heading.emplace_back("marks");
  columns.push_back('l');
  Table table(std::move(columns));
  table.Add(std::move(heading));
  const auto bytes = [exact](int64_t value) { return Bytes(value, exact); };
  for (size_t i = 0; i < memory.intervals.size(); ++i) {
    const Timeline::Interval& interval = memory.intervals[i];
    const double from =
        static_cast<double>(timeline.duration) * static_cast<double>(i) / static_cast<double>(memory.intervals.size());
    std::vector<std::string> cells = {Seconds(static_cast<int64_t>(from)), bytes(interval.in_use), bytes(interval.peak),
                                      Optional(interval.limit, exact)};
    if (has_idle) cells.push_back(bytes(interval.idle));
    if (has_driver) {
      cells.push_back(Optional(interval.driver_in_use, exact));
      cells.push_back(Optional(interval.unaccounted, exact));
    }
    for (const int64_t group : interval.groups) cells.push_back(bytes(group));
    cells.push_back(MarksOf(timeline, i, exact));
    table.Add(std::move(cells));
  }
  return table.Text();
}

// A chart of the bytes in use. Each column is one interval.
class Chart {
 public:
  Chart(const Timeline& timeline, const Timeline::Memory& memory) : timeline_(timeline), memory_(memory) {
    for (const Timeline::Interval& interval : memory.intervals) {
      top_ = std::max({top_, interval.in_use, interval.driver_in_use.value_or(0)});
    }
    // The limit is shown only if it is at most twice the highest value.
    for (const Timeline::Interval& interval : memory.intervals) {
      if (interval.limit.value_or(0) <= 2 * top_) top_ = std::max(top_, interval.limit.value_or(0));
    }
  }

  std::string Text() const {
    std::string text;
    for (size_t row = kChartHeight; row-- > 0;) {
      const bool has_label = row + 1 == kChartHeight || row == 0;
      std::string label = has_label ? Bytes(row == 0 ? 0 : top_) : "";
      label.insert(0, kLabelWidth - std::min(kLabelWidth, label.size()), ' ');
      text += label + (has_utf8_ ? " \u2524" : " |");
      for (size_t i = 0; i < memory_.intervals.size(); ++i) text += Cell(i, row);
      text += '\n';
    }
    return text + MarkLine();
  }

  static constexpr size_t kLabelWidth = 10;
  static constexpr size_t kMargin = kLabelWidth + 3;

 private:
  // Returns the height of `bytes` in the chart, in eighths of a row.
  size_t Eighths(int64_t bytes) const {
    if (top_ <= 0 || bytes <= 0) return 0;
    const double part = static_cast<double>(bytes) / static_cast<double>(top_);
    return std::max<size_t>(1, static_cast<size_t>(part * static_cast<double>(8 * kChartHeight) + 0.5));
  }

  std::string Cell(size_t number, size_t row) const {
    const Timeline::Interval& interval = memory_.intervals[number];
    const size_t filled = Eighths(interval.in_use);
    const bool is_limit = interval.limit.has_value() && *interval.limit <= top_ && RowOf(*interval.limit) == row;
    const bool is_driver = interval.driver_in_use.has_value() && RowOf(*interval.driver_in_use) == row;
    if (filled <= 8 * row) {
      if (is_limit) return Colored(has_utf8_ ? "\u2500" : "-", Tone::kGrowth);
      return is_driver ? Colored(has_utf8_ ? "\u00b7" : ".", Tone::kWarning) : " ";
    }
    const size_t eighths = std::min<size_t>(8, filled - 8 * row);
    const bool is_peak = number == timeline_.IntervalOf(memory_.peak_time);
    return Colored(BarOf(eighths), is_peak ? Tone::kGrowth : Tone::kPlain);
  }

  size_t RowOf(int64_t bytes) const { return bytes <= 0 ? 0 : (Eighths(bytes) - 1) / 8; }

  // P: the peak. D: a profile. X: an allocation failed. If a column has several marks, X is shown before D, and D
  // before P.
  std::string MarkLine() const {
    std::string marks(memory_.intervals.size(), ' ');
    marks[timeline_.IntervalOf(memory_.peak_time)] = 'P';
    for (const auto kind : {Timeline::MarkKind::kProfile, Timeline::MarkKind::kFailed}) {
      for (const Timeline::Mark& mark : timeline_.marks) {
        const bool is_other = !mark.memory.empty() && mark.memory != memory_.name;
        if (mark.kind != kind || is_other) continue;
        marks[timeline_.IntervalOf(mark.time)] = kind == Timeline::MarkKind::kProfile ? 'D' : 'X';
      }
    }
    const std::string margin(kMargin - 1, ' ');
    std::string line = margin + marks;
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string end = Seconds(timeline_.duration);
    std::string axis = margin + "0 s";
    const size_t width = kMargin - 1 + memory_.intervals.size();
    if (width > axis.size() + end.size()) axis += std::string(width - axis.size() - end.size(), ' ') + end;
    return Cat(line, "\n", axis, "\n");
  }

  const Timeline& timeline_;
  const Timeline::Memory& memory_;
  const bool has_utf8_ = IsUtf8Locale();
  int64_t top_ = 0;
};

// Prints as many marks as fit below `lines` lines of the terminal: those of failed allocations first.
void PrintMarks(std::vector<Timeline::Mark> marks, size_t lines, bool exact) {
  const size_t all = marks.size();
  const size_t left = TerminalRows() - std::min(TerminalRows(), lines + 1);  // one line is for the prompt
  if (TerminalRows() != 0 && all > left) {
    const auto is_failed = [](const Timeline::Mark& mark) { return mark.kind == Timeline::MarkKind::kFailed; };
    std::stable_partition(marks.begin(), marks.end(), is_failed);
    marks.resize(left - std::min<size_t>(left, 1));
    absl::c_stable_sort(marks, [](const auto& a, const auto& b) { return a.time < b.time; });
  }
  for (const Timeline::Mark& mark : marks) Print(Cat(Seconds(mark.time), "  ", MarkText(mark, exact), "\n"));
  if (marks.size() < all) Print(Cat("... and ", all - marks.size(), " more marks (--json has all)\n"));
}

Json ToJson(const Timeline& timeline) {
  Json json;
  json["version"] = kJsonVersion;
  json["start"] = FormatTime(timeline.start_unix_nanos);
  json["start_unix_nanos"] = timeline.start_unix_nanos;
  json["seconds"] = InSeconds(timeline.duration);
  json["events"] = timeline.events;
  json["memories"] = Json::array();
  const auto value_or_null = [](std::optional<int64_t> value) { return value.has_value() ? Json(*value) : Json(); };
  for (const Timeline::Memory& memory : timeline.memories) {
    Json& entry = json["memories"].emplace_back();
    entry["name"] = memory.name;
    entry["in_use"] = memory.end_in_use;
    entry["peak"] = memory.peak;
    entry["peak_seconds"] = InSeconds(memory.peak_time);
    entry["limit"] = value_or_null(memory.limit);
    entry["at_peak"] = Json::array();
    for (const FunctionSum& holder : memory.holders) {
      entry["at_peak"].push_back({{"function", holder.function},
                                  {"where", holder.position},
                                  {"bytes", holder.bytes},
                                  {"count", holder.count}});
    }
    if (!memory.groups.empty()) entry["groups"] = memory.groups;
    entry["intervals"] = Json::array();
    for (const Timeline::Interval& interval : memory.intervals) {
      Json& row = entry["intervals"].emplace_back();
      row["in_use"] = interval.in_use;
      row["pool_idle"] = interval.idle;
      row["peak"] = interval.peak;
      row["limit"] = value_or_null(interval.limit);
      row["driver_in_use"] = value_or_null(interval.driver_in_use);
      row["unaccounted"] = value_or_null(interval.unaccounted);
      if (!memory.groups.empty()) row["groups"] = interval.groups;
    }
  }
  json["marks"] = Json::array();
  for (const Timeline::Mark& mark : timeline.marks) {
    const bool is_failed = mark.kind == Timeline::MarkKind::kFailed;
    const char* const kind = is_failed ? "failed" : mark.kind == Timeline::MarkKind::kReport ? "report" : "profile";
    json["marks"].push_back({{"seconds", InSeconds(mark.time)}, {"kind", kind}});
    if (!is_failed) json["marks"].back()["name"] = mark.name;
    if (is_failed) json["marks"].back()["bytes"] = mark.bytes;
    if (!mark.memory.empty()) json["marks"].back()["memory"] = mark.memory;
  }
  return json;
}

absl::StatusOr<int> RunTimeline(TimelineCommandOptions& options) {
  ASSIGN_OR_RETURN(const OpenedRecording recording, OpenRecording(options.file, options.known, options.own));
  const bool is_chart = !options.json && options.rows == 0 && options.by.empty() && IsTerminal(STDOUT_FILENO);
  if (options.rows != 0) options.intervals = options.rows;
  if (is_chart) {
    const size_t columns = TerminalColumns() == 0 ? 80 : TerminalColumns();
    options.intervals = std::max<size_t>(10, columns - std::min(columns, Chart::kMargin));
  }
  ASSIGN_OR_RETURN(const Timeline timeline, MakeTimeline(*recording.reader, recording.stacks, options));
  WarnOfGaps("timeline", options.file, *recording.reader);
  if (options.json) {
    Print(ToText(ToJson(timeline)));
    return kSuccess;
  }
  std::string text;
  for (const Timeline::Memory& memory : timeline.memories) {
    text += (text.empty() ? "" : "\n") + Summary(timeline, memory, options.exact);
    text += is_chart ? Chart(timeline, memory).Text() : Rows(timeline, memory, options.exact);
    text += HolderTable(memory, options.exact);
  }
  PrintVisible(text);
  if (is_chart) PrintMarks(timeline.marks, static_cast<size_t>(absl::c_count(text, '\n')), options.exact);
  return kSuccess;
}

}  // namespace

Command AddTimelineCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("timeline", "Show memory over time, from a recording");
  auto options = std::make_shared<TimelineCommandOptions>();
  arguments->add_option("RECORDING", options->file, "A recording")->required();
  arguments->add_option("-d,--device", options->memory, "Only this memory: GPU:0, or \"GPU:0 pinned_host\"");
  arguments->add_option("-b,--by", options->by,
                        "Add columns of bytes: function, library, tag (sets of tags), or KEY (values of this tag)");
  arguments
      ->add_option("-n,--rows", options->rows,
                   "Number of rows; each is an interval of the same length (default: 24; on a terminal: a chart)")
      ->transform(WholeNumber(1, kMaxRows));
  arguments->add_option("--sites", options->max_holders, "Functions to show at the peak (default: 5; 0: all)")
      ->transform(WholeNumber(0, kMaxCount));
  arguments->add_flag("--exact", options->exact, "Print bytes without rounding");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--own,!--no-own", options->own, kOwnHelp);
  AddKnownOption(*arguments, options->known);
  arguments->footer("On a terminal, a chart: P marks the peak, D a profile, X an allocation that failed.");
  return {arguments, [options] { return RunTimeline(*options); }, true};
}

}  // namespace hbmprof::tool
