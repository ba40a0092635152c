#include "src/tool/serve/metrics_text.h"

#include <re2/re2.h>

#include <sstream>

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// A line "# HELP NAME TEXT" or "# TYPE NAME TYPE".
const RE2 kComment("# (HELP|TYPE) ((?:[a-zA-Z_:][a-zA-Z0-9_:]*)?).*");
// A sample: its name, the labels between the braces, and its value.
const RE2 kSample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_:][a-zA-Z0-9_:]*="(?:[^"\\]|\\.)*",?)*)\})? (.*))re");
const RE2 kLabel(R"re(([^=]*)=("(?:[^"\\]|\\.)*"),?)re");

struct Family {
  std::string help;
  std::string type;
  std::string samples;
};

class Merger {
 public:
  void Add(const ProcessMetrics& process) {
    family_.clear();
    std::istringstream lines(process.text);
    for (std::string line; std::getline(lines, line);) {
      if (Visible(line) != line) continue;  // not UTF-8, or control characters: Prometheus would refuse the whole text
      std::string word;
      if (RE2::FullMatch(line, kComment, &word, &family_)) {
        AddComment(line, word == "HELP" ? &Family::help : &Family::type);
      } else {
        AddSample(process, line);
      }
    }
  }

  std::string Text() const {
    std::string text;
    for (const std::string& name : order_) {
      const Family& family = families_.at(name);
      text += family.help + family.type + family.samples;
    }
    return text;
  }

 private:
  Family& FamilyOf(const std::string& name) {
    const auto [found, is_new] = families_.try_emplace(name);
    if (is_new) order_.push_back(name);
    return found->second;
  }
  void AddComment(const std::string& line, std::string Family::*member) {
    if (family_.empty()) return;
    std::string& kept = FamilyOf(family_).*member;
    if (kept.empty()) kept = line + "\n";
  }
  void AddSample(const ProcessMetrics& process, const std::string& line) {
    std::string name;
    re2::StringPiece given;
    std::string value;
    double number = 0;
    if (!RE2::FullMatch(line, kSample, &name, &given, &value) || !absl::SimpleAtod(value, &number)) return;
    std::string labels;
    for (const auto& [label, of_process] : process.labels) {
      const std::string escaped = absl::StrReplaceAll(Visible(of_process), {{"\\", "\\\\"}, {"\"", "\\\""}});
      labels += Cat(labels.empty() ? "" : ",", label, "=\"", escaped, "\"");
    }
    std::string key;
    std::string text;
    while (RE2::Consume(&given, kLabel, &key, &text)) {
      const bool is_given = absl::c_any_of(process.labels, [&](const auto& label) { return label.first == key; });
      labels += Cat(labels.empty() ? "" : ",", is_given ? "exported_" : "", key, "=", text);
    }
    // The samples of a histogram or summary have names with suffixes.
    const bool is_in_family = !family_.empty() && name.rfind(family_, 0) == 0;
    FamilyOf(is_in_family ? family_ : name).samples += Cat(name, "{", labels, "} ", value, "\n");
  }

  std::map<std::string, Family> families_;
  std::vector<std::string> order_;
  std::string family_;  // of the latest HELP or TYPE
};

}  // namespace

std::string MergeMetrics(const std::vector<ProcessMetrics>& processes) {
  Merger merger;
  for (const ProcessMetrics& process : processes) merger.Add(process);
  return merger.Text();
}

}  // namespace hbmprof::tool
