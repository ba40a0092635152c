// `hbmprof top`: shows which functions, lines or labels hold the memory, or the call tree.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <cctype>
#include <deque>

#include "src/base/descriptor.h"
#include "src/base/write_all.h"
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/memory_limit.h"

namespace hbmprof::tool {
namespace {

using internal::FileDescriptor;

// Prepares the terminal for the table: shows a second screen without cursor and line wrap, switches off the echo of
// keys, and makes signals readable from a descriptor. The destructor restores everything.
class Screen {
 public:
  Screen() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    signals_.Reset(signalfd(-1, &signals, SFD_CLOEXEC));
    has_keys_ = isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &keys_) == 0;
    if (has_keys_) {
      termios silent = keys_;
      silent.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      silent.c_cc[VSUSP] = 0;  // no Ctrl-Z, because the shell would get the terminal in this state
      tcsetattr(STDIN_FILENO, TCSANOW, &silent);
    }
    Write("\033[?1049h\033[?25l\033[?7l");
  }
  ~Screen() {
    Write("\033[?7h\033[?25h\033[?1049l");
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &keys_);
    signals_.Reset(-1);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  static size_t rows() { return TerminalRows() > 0 ? TerminalRows() : 24; }
  // Shows the first lines of `text`, which must have no effect on a terminal except colours.
  void Show(const std::string& text) const {
    std::string screen = "\033[H";
    size_t begin = 0;
    for (size_t line = 0; line < rows() && begin < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      screen += (line == 0 ? "" : "\r\n") + text.substr(begin, end - begin) + "\033[0m\033[K";
      begin = end + 1;
    }
    Write(screen + "\033[J");
  }
  // Waits for `millis`, or less if a key is pressed or the size of the window changes. Returns the key in lower case, 0
  // without a key, and 'q' also if the user ends the command in another way.
  char Wait(int millis) const {
    pollfd sources[] = {{signals_.get(), POLLIN, 0}, {has_keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(sources, 2, millis) <= 0) return 0;
    signalfd_siginfo info = {};
    if (sources[0].revents != 0) {
      return read(signals_.get(), &info, sizeof(info)) == sizeof(info) && info.ssi_signo == SIGWINCH ? '\0' : 'q';
    }
    char key = 0;
    return read(STDIN_FILENO, &key, 1) == 1 ? static_cast<char>(std::tolower(static_cast<unsigned char>(key))) : 'q';
  }

 private:
  static void Write(const std::string& text) { internal::WriteAll(STDOUT_FILENO, text); }

  sigset_t before_;
  FileDescriptor signals_{-1};
  termios keys_ = {};
  bool has_keys_ = false;
};

struct Profiles {
  std::string first;
  std::string previous;
  std::string now;
};

// The keys that sort the table, and the columns by which they sort.
constexpr std::pair<char, const char*> kOrders[] = {{'f', "flat"}, {'c', "cum"}, {'n', "now"}, {'s', "since start"}};

// The bytes in use of each memory at the last refreshes, as curves.
class Curves {
 public:
  void Add(const ProfileSet::File& file) {
    for (const ProfileInfo::Device& device : file.info.devices) {
      const std::optional<int64_t> in_use = device.Number("in_use");
      if (!in_use.has_value()) continue;
      std::deque<Point>& points = memories_[device.memory()];
      if (!points.empty() && points.back().time_nanos == file.time_nanos) continue;  // shown again
      points.push_back({file.time_nanos, *in_use});
      if (points.size() > kMostPoints) points.pop_front();
    }
  }
  // Returns one line for each memory, for PrintVisible: from the lowest to the highest value.
  std::string Text(bool exact) const {
    std::string text;
    for (const auto& [name, points] : memories_) {
      const auto [low, high] =
          absl::c_minmax_element(points, [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
      const auto seconds = Minus(points.back().time_nanos, points.front().time_nanos) / 1'000'000'000;
      text += Visible(name) + " ";
      const double range = std::max(1.0, static_cast<double>(high->bytes) - static_cast<double>(low->bytes));
      for (const Point& point : points) {
        const double part = (static_cast<double>(point.bytes) - static_cast<double>(low->bytes)) / range;
        text += BarOf(1 + static_cast<size_t>(7 * part));
      }
      text += Cat(" ", Bytes(low->bytes, exact), " to ", Bytes(high->bytes, exact), " in ", seconds, " s\n");
    }
    return text;
  }

 private:
  struct Point {
    int64_t time_nanos;
    int64_t bytes;
  };
  static constexpr size_t kMostPoints = 60;
  std::map<std::string, std::deque<Point>> memories_;
};

using Changes = absl::flat_hash_map<std::string, int64_t>;

std::string KeyOf(const Sums::Row& row) {
  std::string key = row.name;
  for (const std::string& label : row.labels) key += '\0' + label;
  return key;
}

Changes ChangesSince(const SumsQuery& query, size_t file) {
  Changes changes;
  const Sums sums(query.profiles, {{file, file + 1}, {2, 3}}, query.type, query.grouping);
  for (const Sums::Row& row : sums.Rows(false)) changes[KeyOf(row)] = row.flat_change();
  return changes;
}

// Returns the text of the screen, sorted by the column of the key `order`. Adds the newest profile to `curves`. The
// text has at most `rows` lines if `rows` is not 0.
absl::StatusOr<std::string> TextOf(const LiveProcess& process, const Profiles& profiles, const SumsOptions& options,
                                   char order, Curves& curves, size_t rows) {
  ASSIGN_OR_RETURN(
      ProfileSet set,
      ProfileSet::Parse({{"first", profiles.first}, {"previous", profiles.previous}, {process.name, profiles.now}}));
  ASSIGN_OR_RETURN(const SumsQuery query, MakeQuery("top", std::move(set), options));
  const Sums sums(query.profiles, {{2, 3}}, query.type, query.grouping);
  const Changes since_first = ChangesSince(query, 0);
  const Changes since_previous = ChangesSince(query, 1);
  const auto change_in = [](const Changes& changes, const Sums::Row& row) {
    const auto found = changes.find(KeyOf(row));
    return found == changes.end() ? 0 : found->second;
  };
  const auto change = [&](int64_t value) { return value == 0 ? "" : query.Change(value); };
  const ProfileSet::File& now = query.profiles.files()[2];
  curves.Add(now);
  std::string text =
      Cat(Visible(process.name), " (", process.pid, ")  ", FormatTime(now.time_nanos), "  q ends; sort by");
  for (const auto& [key, column] : kOrders) text += Cat(key == order ? "  *" : "  ", key, " ", column);
  text += Cat("\n", DeviceLines(now, options.exact), curves.Text(options.exact));
  const auto seconds = (now.time_nanos - query.profiles.files()[0].time_nanos) / 1'000'000'000;
  text += Cat(
      Visible(query.type_name), ": ", Visible(query.Text(sums.sum()[1])), ", in ", seconds, " s ",
      Visible(FormatChange(Minus(sums.sum()[1], Sums(query.profiles, {{0, 1}}, query.type, query.grouping).sum()[1]),
                           query.unit, options.exact)),
      "\n\n");
  const auto change_column = [&](const char* heading, const Changes& changes) -> RowField<Sums::Row> {
    return {heading, 'r', [&](const Sums::Row& row) { return change(change_in(changes, row)); }, "", nullptr};
  };
  RowFields<Sums::Row> columns = {ValueField(query, "flat", [](const Sums::Row& row) { return row.flat[1]; }),
                                  change_column("now", since_previous), change_column("since start", since_first)};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back(ValueField(query, "cum", [](const Sums::Row& row) { return row.cum[1]; }));
  }
  AddNameFields(query.grouping, columns);
  const std::function<Tone(const Sums::Row&)> tone = [&](const Sums::Row& row) {
    return ToneOf(change_in(since_first, row));
  };
  const auto head = static_cast<size_t>(absl::c_count(text, '\n')) + 2;
  size_t shown = options.rows == 0 ? SIZE_MAX : options.rows;
  if (rows != 0) shown = std::max<size_t>(std::min(shown, rows > head ? rows - head : 1), 1);
  std::vector<Sums::Row> sorted = sums.Rows(order == 'c');
  if (order == 'n' || order == 's') {
    const Changes& changes = order == 'n' ? since_previous : since_first;
    absl::c_stable_sort(
        sorted, [&](const Sums::Row& a, const Sums::Row& b) { return change_in(changes, a) > change_in(changes, b); });
  }
  return text + TableOf(sorted, columns, shown, tone);
}

// Shows the rows that hold the memory of `process`, largest first, with the change since the previous refresh and since
// the first one, and the bytes in use at the last refreshes as a curve. Keys select the column by which the rows are
// sorted. Asks the process for a profile every `seconds` and at every key. Ends at the key q, at SIGINT,
// SIGQUIT, SIGTERM or SIGHUP, or when the process ends. The last table stays on the terminal. REQUIRES: standard output
// is a terminal, and 0.1 <= seconds <= 86400.
absl::StatusOr<int> RunLiveTop(const LiveProcess& process, const SumsOptions& options, double seconds) {
  ASSIGN_OR_RETURN(const std::string profile, QueryProcess(process.socket, "profile"));
  Profiles profiles = {profile, profile, profile};
  // The first and the previous profile stay in memory, and all three are parsed at each refresh.
  for (int i = 0; i < 3; ++i) CountInput(profile.size());
  char order = options.by_cum ? 'c' : 'f';
  Curves curves;
  ASSIGN_OR_RETURN(std::string text, TextOf(process, profiles, options, order, curves, 0));
  std::string end;
  {
    const Screen screen;
    while (true) {
      absl::StatusOr<std::string> shown = TextOf(process, profiles, options, order, curves, Screen::rows() - 1);
      if (shown.ok()) {
        text = *std::move(shown);
        screen.Show(text);
      } else {
        screen.Show(Visible(MessageOf(shown.status())));
      }
      const char key = screen.Wait(static_cast<int>(seconds * 1000));
      if (key == 'q') break;
      for (const auto& [by, column] : kOrders) order = by == key ? key : order;
      absl::StatusOr<std::string> next = QueryProcess(process.socket, "profile");
      if (!next.ok()) {
        end = Cat(process.name, " (", process.pid, ") has ended, or does not answer\n");
        break;
      }
      if (next->size() > profiles.now.size()) CountInput(3 * (next->size() - profiles.now.size()));
      profiles.previous = std::exchange(profiles.now, *std::move(next));
    }
  }
  PrintVisible(text);
  Print(end);
  return kSuccess;
}

struct TopOptions : SumsOptions {
  std::string interval = "2s";
  std::string callers;  // an expression
};

void PrintHead(const TopOptions& options, const SumsQuery& query, const Sums& sums) {
  for (const ProfileSet::File& file : query.profiles.files()) {
    PrintVisible(Cat(Visible(file.path), "  ", FormatTime(file.time_nanos), "\n", DeviceLines(file, options.exact)));
  }
  const int64_t sum = sums.sum()[1];
  const int64_t total = sums.total()[1];
  const std::string of = options.has_filter() || sum != total ? Cat(" of ", query.Text(total)) : "";
  Print(Cat(Visible(query.type_name), ": ", Visible(query.Text(sum)), Visible(of), "\n", FreedLine(query),
            query.trimmed ? kTrimmedText : "", "\n"));
}

// Returns how many seconds before the dump the oldest buffers of each row were born, at the most, by the labels and the
// name of the row. Empty without the label of births, or for several files.
std::map<std::pair<std::vector<std::string>, std::string>, int64_t> OldestBuffers(const SumsQuery& query) {
  std::map<std::pair<std::vector<std::string>, std::string>, int64_t> oldest;
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

// `json`: as for ShowTree.
void ShowRows(const TopOptions& options, const SumsQuery& query, const Sums& sums, Json* json) {
  const auto flat = [](const Sums::Row& row) { return row.flat[1]; };
  const auto cum = [](const Sums::Row& row) { return row.cum[1]; };
  const int64_t total = sums.total()[1];
  RowFields<Sums::Row> columns = {ValueField(query, "flat", flat), ShareField("flat%", total, flat)};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back(ValueField(query, "cum", cum));
    columns.push_back(ShareField("cum%", total, cum));
  }
  const auto oldest = options.NeedsAges() ? OldestBuffers(query) : decltype(OldestBuffers(query))();
  if (!oldest.empty()) {
    const auto age_of = [&](const Sums::Row& row) {
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
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  if (json != nullptr) return AddRows("rows", rows, columns, options.rows, *json);
  PrintVisible(TableOf(rows, columns, options.rows));
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
  Json* const to = options.json ? &json : nullptr;
  if (!options.json) PrintHead(options, query, sums);
  if (options.tree) {
    ShowTree(query, 0, options.nodes(), sums.total()[1], to);
  } else {
    ShowRows(options, query, sums, to);
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
