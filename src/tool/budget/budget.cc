// The file of a budget.
#include "src/tool/budget/budget.h"

#include "src/tool/util/files.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr char kHead[] =
    "# Device memory at the peak, by call stack. hbmprof diff --budget FILE PROFILE fails if a function or the total\n"
    "# exceeds its size by more than the tolerance, or if a function that is not here holds more than new-code.\n"
    "# A line may have a tolerance of its own: 4MiB 20% Function < Caller < Caller of the caller\n";
constexpr char kCaller[] = " < ";

// Removes the first word of `line`, and returns it.
std::string TakeWord(std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t"));
  line.erase(0, word.size());
  absl::StripAsciiWhitespace(&line);
  return word;
}

bool ParsePercent(const std::string& word, double& percent) {
  return !word.empty() && word.back() == '%' && absl::SimpleAtod(word.substr(0, word.size() - 1), &percent) &&
         percent >= 0 && percent <= 1000;  // not NaN
}

bool ParseSize(std::string_view word, int64_t& bytes) { return ParseBytes(word, &bytes) && bytes <= int64_t{1} << 50; }

// Reads a line with at least one word. Returns what is wrong; "" if nothing is.
std::string ReadLine(std::string line, Budget& budget) {
  const std::string word = TakeWord(line);
  if (word == "tolerance") {
    const bool has_percent = ParsePercent(TakeWord(line), budget.percent);
    return has_percent && (line.empty() || ParseSize(line, budget.least)) ? "" : "write tolerance 5% 64KiB";
  }
  if (word == "new-code") return ParseSize(line, budget.new_code) ? "" : "write new-code 1MiB";
  if (word == "total") return ParseSize(line, budget.total.emplace()) ? "" : "write total 16MiB";
  Budget::Entry entry;
  if (!ParseSize(word, entry.bytes)) return "write 4MiB Function < Caller, or tolerance, new-code or total";
  std::string rest = line;
  if (double percent = 0; ParsePercent(TakeWord(rest), percent)) {
    entry.percent = percent;
    line = rest;
  }
  entry.functions = absl::StrSplit(line, kCaller);
  for (std::string& name : entry.functions) {
    absl::StripAsciiWhitespace(&name);
    if (name.empty()) return "a function has no name";
  }
  budget.entries.push_back(std::move(entry));
  return "";
}

// Returns the exact size.
std::string SizeText(int64_t bytes) {
  if (bytes % 1024 != 0 || bytes == 0) return Cat(bytes, "B");
  return bytes % (1 << 20) == 0 ? Cat(bytes >> 20, "MiB") : Cat(bytes >> 10, "KiB");
}

}  // namespace

absl::StatusOr<Budget> ReadBudget(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  CountInput(text.size());
  Budget budget;
  size_t number = 0;
  for (std::string line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    ++number;
    absl::StripAsciiWhitespace(&line);
    if (line.empty() || line[0] == '#') continue;
    if (const std::string problem = ReadLine(line, budget); !problem.empty()) {
      return InvalidArgument(path, ":", number, ": '", line.substr(0, 100), "': ", problem);
    }
  }
  if (budget.total.has_value() || !budget.entries.empty()) return budget;
  return InvalidArgument(path, ": not a budget: it has neither a total nor a function");
}

std::string TextOf(const Budget& budget) {
  std::string text = Cat(kHead, absl::StrFormat("tolerance %g%% ", budget.percent), SizeText(budget.least),
                         "\nnew-code ", SizeText(budget.new_code), "\n");
  if (budget.total.has_value()) text += Cat("total ", SizeText(*budget.total), "\n");
  for (const Budget::Entry& entry : budget.entries) {
    text += absl::StrFormat("\n%10s ", SizeText(entry.bytes));
    if (entry.percent.has_value()) text += absl::StrFormat("%g%% ", *entry.percent);
    text += absl::StrJoin(entry.functions, kCaller);
  }
  return text + "\n";
}

}  // namespace hbmprof::tool
