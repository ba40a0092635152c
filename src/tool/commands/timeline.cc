// `hbmprof timeline`: memory over time, from a recording.
#include "src/tool/recording/timeline.h"

#include <unistd.h>

#include "src/tool/commands/command.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"

namespace hbmprof::tool {
namespace {

struct TimelineCommandOptions {
  std::string file;
  std::string memory;
  size_t sites = 5;
  bool json = false;
  bool own = true;
  std::vector<std::string> known;
};

constexpr size_t kChartHeight = 10;

double InSeconds(int64_t nanos) { return static_cast<double>(nanos) / 1e9; }
std::string Seconds(int64_t nanos) { return FormatSeconds(InSeconds(nanos)); }

struct Holder {
  std::string function;
  std::string where;
  int64_t bytes = 0;
  int64_t count = 0;
};
// Returns the functions that hold the memory at its peak, the largest first.
std::vector<Holder> HoldersOf(const OpenedRecording& recording, const Timeline::Memory& memory) {
  const SiteTotals totals(recording.reader->tables());
  std::map<std::pair<std::string, std::string>, Holder> sums;
  for (const Timeline::AtPeak& at_peak : memory.at_peak) {
    const RecordedStacks::Frame& frame = recording.stacks.own_frame(totals.stack_of(at_peak.row));
    Holder& holder =
        sums.try_emplace({frame.name, frame.Position()}, Holder{frame.name, frame.Position()}).first->second;
    AddTo(holder.bytes, at_peak.bytes);
    AddTo(holder.count, at_peak.count);
  }
  std::vector<Holder> holders;
  for (auto& [key, holder] : sums) holders.push_back(std::move(holder));
  absl::c_stable_sort(holders, [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return holders;
}

RowFields<Holder> HolderFields(int64_t peak) {
  return {{"at the peak", 'r', [](const Holder& holder) { return Bytes(holder.bytes); }, "bytes", &Holder::bytes},
          {"share", 'r', [peak](const Holder& holder) { return FormatPercent(holder.bytes, peak); }, "", nullptr},
          {"function", 'l', &Holder::function, "function", &Holder::function},
          {"where", 'l', &Holder::where, "where", &Holder::where},
          {"", 'l', nullptr, "count", &Holder::count}};
}

// A chart of the bytes in use. Each column is an interval of the timeline.
class Chart {
 public:
  Chart(const Timeline& timeline, const Timeline::Memory& memory, size_t width)
      : timeline_(timeline), memory_(memory), high_(width), driver_(width) {
    for (size_t i = 0; i < timeline.times.size(); ++i) {
      const int64_t from = i == 0 ? 0 : timeline.times[i - 1];
      const size_t column = ColumnOf(from + (timeline.times[i] - from) / 2);
      high_[column] = std::max(high_[column], memory.high[i]);
      driver_[column] = memory.driver_in_use[i].value_or(0);
      top_ = std::max({top_, memory.high[i], driver_[column]});
    }
    // The limit is shown only if it is at most twice the highest value.
    if (memory.limit.value_or(0) > 2 * top_) return;
    limit_ = memory.limit.value_or(0);
    top_ = std::max(top_, limit_);
  }

  std::string Text() const {
    std::string text;
    for (size_t row = kChartHeight; row-- > 0;) {
      const bool has_label = row + 1 == kChartHeight || row == 0;
      std::string label = has_label ? Bytes(row == 0 ? 0 : top_) : "";
      label.insert(0, kLabelWidth - std::min(kLabelWidth, label.size()), ' ');
      label += has_utf8_ ? " \u2524" : " |";
      for (size_t column = 0; column < high_.size(); ++column) label += Cell(column, row);
      absl::StripTrailingAsciiWhitespace(&label);
      text += label + '\n';
    }
    return text + MarkLine();
  }

  static constexpr size_t kLabelWidth = 10;
  static constexpr size_t kMargin = kLabelWidth + 3;

 private:
  size_t ColumnOf(int64_t time) const {
    if (timeline_.duration == 0) return 0;
    const double part = static_cast<double>(time) / static_cast<double>(timeline_.duration);
    return std::min(high_.size() - 1, static_cast<size_t>(part * static_cast<double>(high_.size())));
  }
  // Returns the height of `bytes` in the chart, in eighths of a row.
  size_t Eighths(int64_t bytes) const {
    if (top_ <= 0 || bytes <= 0) return 0;
    const double part = static_cast<double>(bytes) / static_cast<double>(top_);
    return std::max<size_t>(1, static_cast<size_t>(part * static_cast<double>(8 * kChartHeight) + 0.5));
  }
  bool IsInRow(int64_t bytes, size_t row) const { return bytes > 0 && (Eighths(bytes) - 1) / 8 == row; }

  std::string Cell(size_t column, size_t row) const {
    const size_t filled = Eighths(high_[column]);
    if (filled <= 8 * row) {
      if (IsInRow(limit_, row)) return Colored(has_utf8_ ? "\u2500" : "-", Tone::kGrowth);
      return IsInRow(driver_[column], row) ? Colored(has_utf8_ ? "\u00b7" : ".", Tone::kWarning) : " ";
    }
    const Tone tone = column == ColumnOf(memory_.peak_time) ? Tone::kGrowth : Tone::kPlain;
    static constexpr const char* kBars[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                            "\u2585", "\u2586", "\u2587", "\u2588"};
    const size_t eighths = std::min<size_t>(8, filled - 8 * row);
    return Colored(has_utf8_ ? kBars[eighths - 1] : eighths >= 4 ? "#" : "_", tone);
  }

  // P: the peak. D: a profile. X: an allocation failed. If a column has several marks, X is shown before D, and D
  // before P.
  std::string MarkLine() const {
    std::string marks(high_.size(), ' ');
    marks[ColumnOf(memory_.peak_time)] = 'P';
    for (const auto kind : {Timeline::MarkKind::kProfile, Timeline::MarkKind::kFailed}) {
      for (const Timeline::Mark& mark : timeline_.marks) {
        const bool is_other = !mark.memory.empty() && mark.memory != memory_.name;
        if (mark.kind != kind || is_other) continue;
        marks[ColumnOf(mark.time)] = kind == Timeline::MarkKind::kProfile ? 'D' : 'X';
      }
    }
    const std::string margin(kMargin - 1, ' ');
    std::string line = margin + marks;
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string end = Seconds(timeline_.duration);
    std::string axis = margin + "0 s";
    const size_t width = kMargin - 1 + high_.size();
    if (width > axis.size() + end.size()) axis += std::string(width - axis.size() - end.size(), ' ') + end;
    return Cat(line, "\n", axis, "\n");
  }

  const Timeline& timeline_;
  const Timeline::Memory& memory_;
  const bool has_utf8_ = IsUtf8Locale();
  std::vector<int64_t> high_, driver_;  // by column
  int64_t top_ = 0;
  int64_t limit_ = 0;  // 0: not shown
};

// Returns the marks that are shown: those of failed allocations first, if there are too many.
std::vector<Timeline::Mark> ShownMarks(const Timeline& timeline) {
  constexpr size_t kMostMarks = 20;
  std::vector<Timeline::Mark> marks = timeline.marks;
  if (marks.size() <= kMostMarks) return marks;
  const auto is_failed = [](const Timeline::Mark& mark) { return mark.kind == Timeline::MarkKind::kFailed; };
  std::stable_partition(marks.begin(), marks.end(), is_failed);
  marks.resize(kMostMarks);
  absl::c_stable_sort(marks, [](const auto& a, const auto& b) { return a.time < b.time; });
  return marks;
}

void PrintMarks(const OpenedRecording& recording, const Timeline& timeline) {
  const std::vector<Timeline::Mark> marks = ShownMarks(timeline);
  for (const Timeline::Mark& mark : marks) {
    const bool is_failed = mark.kind == Timeline::MarkKind::kFailed;
    const std::string by = recording.stacks.RequestedBy(recording.reader->tables(), mark.site);
    Print(Cat(Seconds(mark.time), "  ",
              is_failed ? Cat("out of memory", mark.bytes == 0 ? "" : Cat(": ", Bytes(mark.bytes)), " of ", mark.memory,
                              Visible(by))
                        : internal::MarkText(mark.name),
              "\n"));
  }
  const size_t more = timeline.mark_count - marks.size();
  if (more > 0) Print(Cat("... and ", more, " more marks (hbmprof convert --to csv has all)\n"));
}

Json MemoryJson(const OpenedRecording& recording, const Timeline::Memory& memory, size_t sites) {
  Json json = {{"name", memory.name},
               {"in_use", memory.in_use.back()},
               {"peak", memory.peak},
               {"peak_seconds", InSeconds(memory.peak_time)},
               {"limit", OrNull(memory.limit)}};
  AddRows("at_peak", HoldersOf(recording, memory), HolderFields(memory.peak), sites, json);
  const auto add = [&course = json["course"]](const char* key, const auto& values) {
    Json& list = course[key] = Json::array();
    for (const std::optional<int64_t> value : values) list.push_back(OrNull(value));
  };
  add("in_use", memory.in_use);
  add("highest", memory.high);
  if (absl::c_any_of(memory.idle, [](int64_t bytes) { return bytes != 0; })) add("pool_idle", memory.idle);
  if (absl::c_any_of(memory.driver_in_use, [](const auto& bytes) { return bytes.has_value(); })) {
    add("driver_in_use", memory.driver_in_use);
    add("unaccounted", memory.unaccounted);
  }
  return json;
}

Json ToJson(const OpenedRecording& recording, const Timeline& timeline, size_t sites) {
  const RecordingTables& tables = recording.reader->tables();
  Json json = {{"version", kJsonVersion},
               {"start", FormatTime(tables.start_unix_nanos)},
               {"start_unix_nanos", tables.start_unix_nanos},
               {"seconds", InSeconds(timeline.duration)},
               {"events", recording.reader->event_count()}};
  if (const std::vector<std::string> gaps = GapsOf(*recording.reader); !gaps.empty()) json["problems"] = gaps;
  Json& instants = json["instants"] = Json::array();
  for (const int64_t time : timeline.times) instants.push_back(InSeconds(time));
  Json& memories = json["memories"] = Json::array();
  for (const Timeline::Memory& memory : timeline.memories) memories.push_back(MemoryJson(recording, memory, sites));
  Json& marks = json["marks"] = Json::array();
  for (const Timeline::Mark& mark : ShownMarks(timeline)) {
    Json& entry = marks.emplace_back(Json{{"seconds", InSeconds(mark.time)}});
    if (mark.kind == Timeline::MarkKind::kFailed) {
      entry.update({{"kind", "failed"}, {"bytes", mark.bytes}, {"memory", mark.memory}});
      if (std::string by = recording.stacks.CallersAt(tables, mark.site); !by.empty()) entry["requested_by"] = by;
    } else {
      const bool is_off = mark.kind == Timeline::MarkKind::kOff;
      const char* const kind = mark.kind == Timeline::MarkKind::kReport ? "report" : is_off ? "off" : "profile";
      entry.update({{"kind", kind}, {"name", mark.name}});
    }
  }
  const size_t more = timeline.mark_count - marks.size();
  if (more > 0) json["marks_left_out"] = more;  // may move `marks`
  return json;
}

absl::StatusOr<int> RunTimeline(const TimelineCommandOptions& options) {
  ASSIGN_OR_RETURN(const OpenedRecording recording, OpenRecording(options.file, options.known, options.own));
  const size_t columns = TerminalColumns() == 0 ? 80 : TerminalColumns();
  const size_t width = std::max<size_t>(10, columns - std::min(columns, Chart::kMargin));
  TimelineOptions of_timeline;
  of_timeline.memory = options.memory;
  if (!options.json) of_timeline.intervals = width;
  ASSIGN_OR_RETURN(const Timeline timeline, MakeTimeline(*recording.reader, of_timeline));
  WarnOfGaps("timeline", options.file, *recording.reader);
  if (options.json) {
    Print(ToText(ToJson(recording, timeline, options.sites)));
    return kSuccess;
  }
  std::string text = FormatTime(recording.reader->tables().start_unix_nanos);
  if (!text.empty()) text = Cat("start ", text, "\n");
  for (const Timeline::Memory& memory : timeline.memories) {
    text +=
        Cat(&memory == &timeline.memories.front() ? "" : "\n", Visible(memory.name), ": peak ", Bytes(memory.peak),
            " at ", Seconds(memory.peak_time), ", in use ", Bytes(memory.in_use.back()), " at ",
            Seconds(timeline.duration), memory.limit.has_value() ? Cat(", limit ", Bytes(*memory.limit)) : "", "\n");
    text += Chart(timeline, memory, width).Text();
    const std::vector<Holder> holders = HoldersOf(recording, memory);
    if (holders.empty()) continue;
    text += TableOf<Holder>(holders, HolderFields(memory.peak), options.sites, nullptr, "--sites");
  }
  PrintVisible(text);
  PrintMarks(recording, timeline);
  return kSuccess;
}

}  // namespace

Command AddTimelineCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("timeline", "Show memory over time, from a recording");
  auto options = std::make_shared<TimelineCommandOptions>();
  arguments->add_option("RECORDING", options->file, "A recording")->required();
  arguments->add_option("-d,--device", options->memory, "Only this memory: GPU:0, or \"GPU:0 pinned_host\"");
  AddCount(*arguments, "--sites", options->sites, "Functions to show at the peak, 0 for all");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--own,!--no-own", options->own, kOwnHelp);
  AddKnownOption(*arguments, options->known);
  arguments->footer("In the chart, P marks the peak, D a profile, X an allocation that failed.");
  return {arguments, [options] { return RunTimeline(*options); }, true};
}

}  // namespace hbmprof::tool
