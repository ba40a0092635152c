// See metrics_text.h.
#include "src/tool/serve/metrics_text.h"

#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

bool IsNameCharacter(char c, bool is_first) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
         (!is_first && c >= '0' && c <= '9');
}

// Removes the name at the beginning of `text` and returns it; "" if there is none.
std::string TakeName(std::string_view* text) {
  size_t end = 0;
  while (end < text->size() && IsNameCharacter((*text)[end], end == 0)) ++end;
  std::string name(text->substr(0, end));
  text->remove_prefix(end);
  return name;
}

bool TakeCharacter(std::string_view* text, char c) {
  if (text->empty() || (*text)[0] != c) return false;
  text->remove_prefix(1);
  return true;
}

// Reads the labels of a sample, from "{" to "}", and appends them to `labels`. Returns false if they are not valid.
bool TakeLabels(std::string_view* text, std::string* labels) {
  if (!TakeCharacter(text, '{')) return true;
  while (!TakeCharacter(text, '}')) {
    const std::string key = TakeName(text);
    if (key.empty() || !TakeCharacter(text, '=') || !TakeCharacter(text, '"')) return false;
    size_t end = 0;
    while (end < text->size() && (*text)[end] != '"') end += (*text)[end] == '\\' ? 2 : 1;
    if (end >= text->size()) return false;
    *labels += Cat(",", key == "pid" || key == "name" ? "exported_" : "", key, "=\"", text->substr(0, end), "\"");
    text->remove_prefix(end + 1);
    TakeCharacter(text, ',');
  }
  return true;
}

bool IsNumber(std::string_view text) {
  const std::string number(text);
  char* end = nullptr;
  std::strtod(number.c_str(), &end);
  return !number.empty() && *end == '\0';
}

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
      std::string_view rest = line;
      if (rest.rfind("# HELP ", 0) == 0) {
        AddComment(rest.substr(7), line, &Family::help);
      } else if (rest.rfind("# TYPE ", 0) == 0) {
        AddComment(rest.substr(7), line, &Family::type);
      } else {
        AddSample(process, rest);
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
  void AddComment(std::string_view name_and_text, const std::string& line, std::string Family::*member) {
    family_ = TakeName(&name_and_text);
    if (family_.empty()) return;
    std::string& kept = FamilyOf(family_).*member;
    if (kept.empty()) kept = line + "\n";
  }
  void AddSample(const ProcessMetrics& process, std::string_view line) {
    const std::string name = TakeName(&line);
    std::string labels = Cat("pid=\"", LabelValue(process.id), "\",name=\"", LabelValue(Visible(process.name)), "\"");
    if (name.empty() || !TakeLabels(&line, &labels) || !TakeCharacter(&line, ' ') || !IsNumber(line)) return;
    // The samples of a histogram or summary have names with suffixes.
    const bool is_in_family = !family_.empty() && name.rfind(family_, 0) == 0;
    FamilyOf(is_in_family ? family_ : name).samples += Cat(name, "{", labels, "} ", line, "\n");
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

std::string LabelValue(const std::string& text) {
  std::string value;
  for (const char c : text) {
    if (c == '\\' || c == '"') value += '\\';
    if (c == '\n') {
      value += "\\n";
    } else {
      value += c;
    }
  }
  return value;
}

}  // namespace hbmprof::tool
