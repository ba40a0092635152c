// `hbmprof leaks`: what grows, how fast, and where.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "src/tool/arithmetic.h"
#include "src/tool/command.h"
#include "src/tool/growth.h"
#include "src/tool/sums_view.h"

namespace hbmprof::tool {
namespace {

struct LeaksOptions {
  std::vector<std::string> files;
  std::string type;
  std::string per;
  std::string fail_over;
  std::string fail_on = "sure";
  std::vector<std::string> by;
  size_t rows = 10;
  size_t frames = 8;
  bool json = false;
};

std::string Rate(double rate, const std::string& unit, const std::string& per) {
  return Cat(FormatChange(static_cast<int64_t>(std::llround(rate)), unit), "/", per);
}

std::string SiteText(const ProfileSet& profiles, const SiteGrowth& site, size_t frames) {
  std::string text;
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(site.stack);
  const size_t shown = frames == 0 ? stack.size() : std::min(frames, stack.size());
  Table table({Table::Align::kLeft, Table::Align::kLeft, Table::Align::kLeft});
  for (size_t i = 0; i < shown; ++i) table.Add({"     ", stack[i].name, stack[i].place});
  text += table.Text();
  if (shown < stack.size()) text += Cat("       ... ", stack.size() - shown, " callers more (--frames 0 shows all)\n");
  if (stack.empty()) text += "       [no stack]\n";
  std::string labels;
  for (const auto& [key, value] : site.labels) labels += Cat(labels.empty() ? "" : " ", key, "=", value);
  if (!labels.empty()) text += Cat("       ", Visible(labels), "\n");
  return text;
}

// Errors: kInvalidArgument if no sample of any file has the label `key`.
absl::Status CheckLabel(const ProfileSet& profiles, const std::string& key) {
  std::set<std::string> known;
  for (uint32_t set = 0; set < profiles.label_set_count(); ++set) {
    for (const ProfileSet::Label& label : profiles.labels(set)) known.insert(profiles.text(label.key));
  }
  if (known.count(key) > 0) return absl::OkStatus();
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  return absl::InvalidArgumentError(
      Cat("--by ", key, ": no sample has that label (there are: ", names.empty() ? "none" : names, ")"));
}

void AddVerdict(const SiteGrowth& site, const DumpSeries& series, Json* entry) {
  (*entry)["verdict"] = VerdictName(site.verdict);
  (*entry)["sure"] = SureName(site.sure);
  (*entry)["why"] = site.why;
  (*entry)["more_dumps"] = site.more_dumps;
  (*entry)["growth"] = site.growth;
  (*entry)["per_interval"] = site.per_interval;
  (*entry)["values"] = site.values;
  if (!series.seconds.empty()) (*entry)["per_second"] = site.per_second;
  if (!series.counts.empty()) (*entry)["per_count"] = site.per_count;
}

absl::StatusOr<int> RunLeaks(const LeaksOptions& options) {
  int64_t limit = 0;
  if (!options.fail_over.empty() && !ParseBytes(options.fail_over, &limit)) {
    return absl::InvalidArgumentError(Cat("--fail-over ", options.fail_over, ": write a size such as 1MiB"));
  }
  if (options.files.size() < 3) {
    return absl::InvalidArgumentError(
        Cat(options.files.size(),
            " dumps cannot tell growth from warming up; take three or more, five are good (for"
            " two, use hbmprof diff)"));
  }
  const absl::StatusOr<ProfileSet> profiles = ProfileSet::Read(options.files);
  if (!profiles.ok()) return profiles.status();
  const absl::StatusOr<size_t> type = profiles->TypeNamed(options.type);
  if (!type.ok()) return type.status();
  const absl::StatusOr<DumpSeries> series = OrderDumps(*profiles, options.per);
  if (!series.ok()) return series.status();
  for (const std::string& key : options.by) {
    if (const absl::Status known = CheckLabel(*profiles, key); !known.ok()) return known;
  }
  const std::vector<SiteGrowth> sites = RankGrowth(*profiles, *series, *type, options.by);
  // What counts as growth that must not be, and what all the other sites grew by together.
  const Verdict worst = options.fail_on == "perhaps" ? Verdict::kPerhaps : Verdict::kLeak;
  const SiteGrowth rest = RestOf(*profiles, *series, *type, sites, worst);
  const std::string& unit = profiles->types()[*type].unit;
  const std::string one = OneOf(options.per);

  int64_t leaked = 0;
  int64_t counts[5] = {};
  int64_t first = 0;
  int64_t last = 0;
  for (const SiteGrowth& site : sites) {
    ++counts[static_cast<int>(site.verdict)];
    if (site.verdict <= worst) leaked = Plus(leaked, site.growth);
    first = Plus(first, site.values.front());
    last = Plus(last, site.values.back());
  }
  const int64_t unexplained = rest.verdict <= worst ? rest.growth : 0;
  const bool failed = !options.fail_over.empty() && Plus(leaked, unexplained) > limit;

  if (options.json) {
    if (const absl::Status status = profiles->CheckTextOfStacks(); !status.ok()) return status;
    Json json = {{"type", profiles->types()[*type].type},
                 {"unit", unit},
                 {"leaked", leaked},
                 {"unexplained", unexplained},
                 {"failed", failed}};
    Json& files = json["files"] = Json::array();
    for (const size_t f : series->files) files.push_back(profiles->files()[f].path);
    json["judged"] = {{"first", series->begin}, {"last", series->end - 1}};
    if (!series->restart.empty()) json["restart"] = series->restart;
    if (!series->seconds.empty()) json["seconds"] = series->seconds;
    if (!series->counts.empty()) json["counter"] = {{"name", options.per}, {"values", series->counts}};
    AddVerdict(rest, *series, &json["rest"]);
    Json& list = json["sites"] = Json::array();
    for (const SiteGrowth& site : sites) {
      Json entry;
      AddVerdict(site, *series, &entry);
      entry["labels"] = ObjectOf({site.labels.begin(), site.labels.end()});
      Json& stack = entry["stack"] = Json::array();
      for (const ProfileSet::ShownFrame& frame : profiles->ShownStack(site.stack)) {
        stack.push_back({{"name", frame.name}, {"where", frame.place}});
      }
      list.push_back(std::move(entry));
    }
    Print(ToText(json));
    return failed ? kFinding : kSuccess;
  }

  std::string head = Cat(options.files.size(), " dumps");
  if (!series->seconds.empty()) head += Cat(" over ", std::llround(series->seconds.back()), " s");
  if (!series->counts.empty()) {
    head += Cat(", ", std::llround(series->counts[series->end - 1] - series->counts[series->begin]), " ", options.per);
  }
  Print(Visible(Cat(head, ": ", profiles->types()[*type].type, " from ", FormatValue(first, unit), " to ",
                    FormatValue(last, unit))) +
        "\n");
  Print(Cat(sites.size(), " sites: ", counts[0], " leak, ", counts[1], " perhaps, ", counts[2], " grew and stopped, ",
            counts[3], " go up and down, ", counts[4], " did not grow\n"));
  if (!series->restart.empty()) Print(Visible(series->restart) + "\n");
  const auto verdict = [&](const SiteGrowth& site) {
    std::string rates;
    if (!series->counts.empty()) rates += Rate(site.per_count, unit, one) + "  ";
    if (!series->seconds.empty()) rates += Rate(site.per_second, unit, "s") + "  ";
    rates += Rate(site.per_interval, unit, "interval");
    const std::string text = Cat(site.verdict == Verdict::kLeak ? "LEAK" : "perhaps", "  ", Visible(rates), "  (",
                                 Visible(FormatChange(site.growth, unit)),
                                 " in all)\n       sure: ", SureName(site.sure), "; ", Visible(site.why), "\n");
    return text + Cat("       more dumps: ", Visible(site.more_dumps), "\n");
  };
  size_t shown = 0;
  for (const SiteGrowth& site : sites) {
    if (site.verdict != Verdict::kLeak && site.verdict != Verdict::kPerhaps) break;
    if (options.rows != 0 && shown == options.rows) {
      Print("\n" + MoreRows(shown, static_cast<size_t>(counts[0] + counts[1])));
      break;
    }
    ++shown;
    Print(Cat("\n", shown < 10 ? " " : "", shown, ". ", verdict(site), SiteText(*profiles, site, options.frames)));
  }
  if (rest.verdict == Verdict::kLeak) {
    Print("\nall other sites together: " + verdict(rest));
  }
  // What grew and is no leak: one line each, so that nobody looks for it.
  Table others({Table::Align::kLeft, Table::Align::kRight, Table::Align::kLeft, Table::Align::kLeft});
  size_t listed = 0;
  std::vector<const SiteGrowth*> no_leaks;
  for (const SiteGrowth& site : sites) {
    if (site.verdict == Verdict::kStopped || site.verdict == Verdict::kUpAndDown) no_leaks.push_back(&site);
  }
  std::sort(no_leaks.begin(), no_leaks.end(), [](const SiteGrowth* a, const SiteGrowth* b) {
    return *std::max_element(a->values.begin(), a->values.end()) >
           *std::max_element(b->values.begin(), b->values.end());
  });
  for (const SiteGrowth* site : no_leaks) {
    if (options.rows != 0 && listed == options.rows) break;
    ++listed;
    const std::vector<ProfileSet::ShownFrame> stack = profiles->ShownStack(site->stack);
    others.Add({" ", FormatValue(site->values.back(), unit), stack.empty() ? "[no stack]" : stack[0].name,
                Cat(site->why, "; more dumps: ", site->more_dumps)});
  }
  if (listed > 0) Print("\nno leaks:\n" + others.Text());
  if (failed) {
    const std::string others_grew =
        unexplained > 0 ? Cat(", all other sites together by ", FormatValue(unexplained, unit)) : "";
    Print("\n" +
          Visible(Cat("FAILED: what ", worst == Verdict::kLeak ? "leaks" : "may leak", " grew by ",
                      FormatValue(leaked, unit), others_grew, ", more than ", FormatValue(limit, unit))) +
          "\n");
  }
  return failed ? kFinding : kSuccess;
}

}  // namespace

Command AddLeaksCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("leaks", "Rank what grows steadily over three or more dumps");
  auto options = std::make_shared<LeaksOptions>();
  arguments->add_option("FILE", options->files, "Dumps of one program, three or more")->required();
  arguments->add_option("-t,--type", options->type, "Sample type (default: the profile's own)");
  arguments->add_option("-p,--per", options->per, "Growth per unit of this counter: --per requests");
  arguments->add_option("--fail-over", options->fail_over, "Exit with 1 if leaks grew by more in all, such as 1MiB");
  arguments->add_option("--fail-on", options->fail_on, "What --fail-over counts: sure (leaks only) or perhaps (both)")
      ->check(CLI::IsMember({"sure", "perhaps"}))
      ->capture_default_str();
  arguments->add_option("-b,--by", options->by, "Judge each value of this label by itself: --by phase")
      ->delimiter(',')
      ->allow_extra_args(false);
  arguments->add_option("-n,--rows", options->rows, "Sites to show, 0 for all")->capture_default_str();
  arguments->add_option("--frames", options->frames, "Frames to show of each, 0 for all")->capture_default_str();
  arguments->add_flag("--json", options->json, "All sites as JSON");
  return {arguments, [options] { return RunLeaks(*options); }, true};
}

}  // namespace hbmprof::tool
