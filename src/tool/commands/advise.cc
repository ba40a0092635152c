// `hbmprof advise`: what to change in a program to need less memory or fewer calls of the driver.
#include <sys/stat.h>

#include <memory>

#include "src/tool/advice/advice.h"
#include "src/tool/commands/command.h"
#include "src/tool/recording/gaps.h"
#include "src/tool/util/json.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/status_macros.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct AdviseOptions {
  std::string file;
  std::vector<std::string> known;
  bool json = false;
};

std::string AdviceSeconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f s", seconds);
  return text;
}

Json AdviceJson(const internal::RecordingReader& recording, const AdviceReport& report, const std::string& file) {
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

void PrintAdvice(const internal::RecordingReader& recording, const AdviceReport& report, const std::string& file) {
  Print(Cat(Visible(file), ": ", AdviceSeconds(report.seconds), ", ", recording.event_count(), " events\n"));
  for (const AdviceReport::Account& account : report.accounts) {
    Print(Cat(account.name, ": peak ", FormatValue(account.peak, "bytes"), " at ", AdviceSeconds(account.peak_seconds),
              ", ", account.driver_calls, " calls of the driver\n"));
  }
  if (report.advice.empty()) Print("\nNo advice: nothing exceeds the thresholds.\n");
  int number = 0;
  for (const Advice& advice : report.advice) {
    Print(Cat("\n", ++number, ". ", AdviceKindName(advice.kind), ", ", advice.account, ": ", advice.text, "\n"));
    if (!advice.sites.empty()) {
      Table table({Table::Align::kRight, Table::Align::kRight, Table::Align::kLeft, Table::Align::kLeft});
      table.Add({"bytes", "count", "function", "where"});
      for (const Advice::Site& site : advice.sites) {
        table.Add({FormatValue(site.bytes, "bytes"), std::to_string(site.count), site.function, site.position});
      }
      PrintVisible(table.Text());
    }
    Print(Cat("   ", advice.how, "\n"));
    const auto value = [&advice](const std::string& name) -> const int64_t* {
      for (const auto& [key, figure] : advice.replay) {
        if (key == name) return &figure;
      }
      return nullptr;
    };
    if (const int64_t* calls = value("driver_calls_before"); calls != nullptr) {
      Print(Cat("   calls of the driver: ", *calls, " -> ", *value("driver_calls_after"), "\n"));
    }
    if (const int64_t* peak = value("peak_before"); peak != nullptr) {
      Print(Cat("   peak: ", FormatValue(*peak, "bytes"), " -> ", FormatValue(*value("peak_after"), "bytes"), "\n"));
    }
    if (const int64_t* largest = value("largest_free_before"); largest != nullptr) {
      Print(Cat("   largest free block: ", FormatValue(*largest, "bytes"), " -> ",
                FormatValue(*value("largest_free_after"), "bytes"), "\n"));
    }
  }
}

absl::StatusOr<int> RunAdvise(const AdviseOptions& options) {
  struct stat info;
  if (stat(options.file.c_str(), &info) == 0) CountInput(static_cast<size_t>(info.st_size));
  ASSIGN_OR_RETURN(const OpenedRecording recording, OpenRecording(options.file, options.known));
  Progress progress(2 * static_cast<size_t>(recording.reader->event_count()), "events read");
  const AdviceReport report = Advise(*recording.reader, recording.stacks, progress);
  if (options.json) {
    Print(ToText(AdviceJson(*recording.reader, report, options.file)));
  } else {
    PrintAdvice(*recording.reader, report, options.file);
  }
  WarnOfGaps("advise", options.file, *recording.reader);
  return kSuccess;
}

}  // namespace

Command AddAdviseCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("advise", "Say how a program can use less memory or call the driver less often");
  auto options = std::make_shared<AdviseOptions>();
  arguments->add_option("RECORDING", options->file, "A recording")->required();
  arguments->add_option("--known", options->known,
                        "REGEX of further known libraries: binaries, files, functions; can be repeated");
  arguments->add_flag("--json", options->json, "Print JSON: all rows, with exact values");
  return {arguments, [options] { return RunAdvise(*options); }, true};
}

}  // namespace hbmprof::tool
