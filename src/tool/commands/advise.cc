// `hbmprof advise`: what to change in a program to need less memory or fewer calls of the driver.

#include "src/tool/advice/advice.h"
#include "src/tool/commands/command.h"
#include "src/tool/recording/states.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

struct AdviseOptions {
  std::string file;
  std::vector<std::string> known;
  bool json = false;
};

Json AdviceJson(const RecordingReader& recording, const AdviceReport& report, const std::string& file) {
  Json json = {{"version", kJsonVersion},
               {"file", file},
               {"seconds", report.seconds},
               {"events", recording.event_count()},
               {"complete", recording.is_complete()},
               {"problem", recording.problem()}};
  Json& accounts = json["devices"] = Json::array();
  for (const AdviceReport::Account& account : report.accounts) {
    accounts.push_back({{"device", account.name},
                        {"peak", account.peak},
                        {"peak_seconds", account.peak_seconds},
                        {"driver_calls", account.driver_calls}});
  }
  Json& list = json["advice"] = Json::array();
  for (const Advice& advice : report.advice) {
    Json entry = {{"kind", AdviceKindName(advice.kind)},
                  {"device", advice.account},
                  {"text", advice.text},
                  {"how", advice.how},
                  {"bytes", advice.bytes}};
    Json& sites = entry["sites"] = Json::array();
    for (const Advice::Site& site : advice.sites) {
      sites.push_back(
          {{"function", site.function}, {"where", site.position}, {"bytes", site.bytes}, {"count", site.count}});
    }
    Json& replay = entry["replay"] = Json::object();
    for (const auto& [name, value] : advice.replay) replay[name] = value;
    list.push_back(std::move(entry));
  }
  return json;
}

void PrintAdvice(const RecordingReader& recording, const AdviceReport& report, const std::string& file) {
  Print(Cat(Visible(file), ": ", FormatSeconds(report.seconds), ", ", recording.event_count(), " events\n"));
  for (const AdviceReport::Account& account : report.accounts) {
    Print(Cat(account.name, ": peak ", Bytes(account.peak), " at ", FormatSeconds(account.peak_seconds), ", ",
              account.driver_calls, " calls of the driver\n"));
  }
  if (report.advice.empty()) Print("\nNo advice: nothing exceeds the thresholds.\n");
  int number = 0;
  for (const Advice& advice : report.advice) {
    Print(Cat("\n", ++number, ". ", AdviceKindName(advice.kind), ", ", advice.account, ": ", advice.text, "\n"));
    if (!advice.sites.empty()) {
      Table table("rrll");
      table.Add({"bytes", "count", "function", "where"});
      for (const Advice::Site& site : advice.sites) {
        table.Add({Bytes(site.bytes), std::to_string(site.count), site.function, site.position});
      }
      PrintVisible(table.Text());
    }
    Print(Cat("   ", advice.how, "\n"));
    const std::map<std::string, int64_t> replay(advice.replay.begin(), advice.replay.end());
    const auto print = [&](const std::string& name, const char* text, const char* unit) {
      const auto before = replay.find(name + "_before");
      if (before == replay.end()) return;
      Print(Cat("   ", text, ": ", FormatValue(before->second, unit), " -> ",
                FormatValue(replay.at(name + "_after"), unit), "\n"));
    };
    print("driver_calls", "calls of the driver", "count");
    print("peak", "peak", "bytes");
    print("largest_free", "largest free block", "bytes");
  }
}

absl::StatusOr<int> RunAdvise(const AdviseOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RecordedStates> recorded, ReadRecorded("advise", options.file, kJudgedStates));
  RecordingReader& recording = *recorded->reader;
  ASSIGN_OR_RETURN(const RecordedStacks stacks,
                   RecordedStacks::Make(options.file, recording.tables(), options.known, true));
  ViewOptions view;
  view.known = options.known;
  RETURN_IF_ERROR(ApplyView("advise", view, recorded->states));
  ASSIGN_OR_RETURN(const AdviceReport report, Advise(recording, stacks, recorded->states, recorded->progress));
  if (options.json) {
    Print(ToText(AdviceJson(recording, report, options.file)));
  } else {
    PrintAdvice(recording, report, options.file);
  }
  return kSuccess;
}

}  // namespace

Command AddAdviseCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("advise", "Say how a program can use less memory or call the driver less often");
  auto options = std::make_shared<AdviseOptions>();
  arguments->add_option("RECORDING", options->file, "A recording")->required();
  AddKnownOption(*arguments, options->known);
  arguments->add_flag("--json", options->json, kJsonHelp);
  return {arguments, [options] { return RunAdvise(*options); }, true};
}

}  // namespace hbmprof::tool
