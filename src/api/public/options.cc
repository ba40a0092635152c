#include "hbmprof/options.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "src/api/public/default_profiler.h"
#include "src/base/cut_text.h"
#include "src/base/edit_distance.h"
#include "src/base/option_text.h"
#include "src/capture/walk.h"
#include "src/core/profiler_impl.h"
#include "src/core/tables/tags.h"

namespace hbmprof {
namespace {

constexpr std::string_view kKnown[] = {
#define SWITCH(variable, ...) variable,
#define TEXT SWITCH
#define NUMBER SWITCH
#define NUMBER_OR_0 SWITCH
#define PAIR SWITCH
#include "src/api/public/options.inc"
    "HBMPROF_UNWINDER",
    "HBMPROF_TAGS",
    // Of the injected libraries, of attaching, of the command and of the Python package.
    "HBMPROF_GPU_OUTPUT",
    "HBMPROF_CAPTURE_RANGE",
    "HBMPROF_NVTX",
    "HBMPROF_PJRT_PLUGIN",
    "HBMPROF_ATTACH",
    "HBMPROF_TOOL_MEMORY",
    "HBMPROF_LIBRARY_DIR",
};

// The value of a number must be in this range, or 0 if `or_0` is set.
template <typename Number>
struct Range {
  Number least;
  Number most;
  bool or_0 = false;

  bool Has(Number value) const { return (value >= least && value <= most) || (or_0 && value == 0); }
  std::string Text() const { return absl::StrCat(or_0 ? "0 or " : "", least, " to ", most); }
};

class Environment {
 public:
  explicit Environment(std::vector<std::string>* problems) : problems_(problems) {}

  // Returns the value of the variable, or "" if it is not set.
  static std::string_view Value(const char* name) {
    const char* value = internal::OptionText(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  static void ReadText(const char* name, std::string* result) {
    const std::string_view value = Value(name);
    *result = absl::EqualsIgnoreCase({value.data(), value.size()}, "off") ? "" : std::string(value);
  }

  template <typename Number>
  void ReadNumber(const char* name, const Range<Number>& range, Number* result) {
    const std::string_view value = Value(name);
    if (value.empty() || Parse(value, range, result)) return;
    Complain(name, value, "a number from " + range.Text(), absl::StrCat(*result));
  }

  void ReadSwitch(const char* name, bool* result) {
    const std::string_view value = Value(name);
    if (value.empty()) return;
    const absl::string_view text(value.data(), value.size());
    *result = absl::EqualsIgnoreCase(text, "on");
    if (*result || absl::EqualsIgnoreCase(text, "off") || absl::SimpleAtob(text, result)) return;
    *result = false;  // so that a word that was meant to turn hbmprof off does so
    Complain(name, value, "0 (off, false, no) or 1 (on, true, yes)", "0");
  }

  template <typename First, typename Second>
  void ReadPair(const char* name, const Range<First>& range, First* first, char unit, const Range<Second>& second_range,
                Second* second) {
    const std::string_view value = Value(name);
    First number = *first;
    Second with_unit = *second;
    for (std::string_view rest = value; !rest.empty();) {
      const std::string_view part = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(part.size() + 1, rest.size()));
      const bool has_unit = !part.empty() && part.back() == unit;
      if (has_unit ? Parse(part.substr(0, part.size() - 1), second_range, &with_unit) : Parse(part, range, &number)) {
        continue;
      }
      const std::string allowed = absl::StrCat("a number from ", range.Text(), ", a number from ", second_range.Text(),
                                               " with ", std::string(1, unit), " behind it, or both with a comma");
      return Complain(name, value, allowed, "none");
    }
    *first = number;
    *second = with_unit;
  }

  void ReadTags(const char* name, std::vector<std::pair<std::string, std::string>>* result) {
    const std::string_view value = Value(name);
    std::vector<std::pair<std::string, std::string>> tags;
    for (std::string_view rest = value; !rest.empty();) {
      const std::string_view tag = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(tag.size() + 1, rest.size()));
      const size_t equals = tag.find('=');
      const size_t value_size = tag.size() - std::min(equals, tag.size());
      if (equals == 0 || equals == std::string_view::npos || equals > internal::kMaxTagBytes ||
          value_size > internal::kMaxTagBytes + 1 || tags.size() == internal::kMaxTagKeys) {
        return Complain(name, value,
                        "KEY=VALUE,KEY=VALUE,... of at most 64 tags with at most 128 bytes in a key or value",
                        "no tags");
      }
      tags.emplace_back(tag.substr(0, equals), tag.substr(equals + 1));
    }
    *result = std::move(tags);
  }

  // A variable that nobody reads is probably a misspelled one.
  void FindUnknown() {
    internal::ForEachOptionName([this](std::string_view name) {
      const auto* const end = std::end(kKnown);
      if (name.substr(0, 8) != "HBMPROF_" || std::find(std::begin(kKnown), end, name) != end) return;
      const auto* const nearest = std::min_element(std::begin(kKnown), end, [name](auto known, auto other) {
        return internal::EditDistance(name, known) < internal::EditDistance(name, other);
      });
      if (internal::EditDistance(name, *nearest) > 2) return;  // another program's, such as a Kubernetes service's
      problems_->push_back(absl::StrCat("hbmprof: ", Printable(name),
                                        " is not a variable of hbmprof; the nearest one is ",
                                        absl::string_view(nearest->data(), nearest->size())));
    });
  }

  void Complain(const char* name, std::string_view value, const std::string& allowed, const std::string& used) {
    problems_->push_back(
        absl::StrCat("hbmprof: ", name, "='", Printable(value), "' is not ", allowed, "; using ", used));
  }

 private:
  static std::string Printable(std::string_view text) { return internal::Printable(text.substr(0, 200)); }

  template <typename Number>
  static bool Parse(std::string_view value, const Range<Number>& range, Number* result) {
    const absl::string_view text(value.data(), value.size());
    Number number;
    bool is_number;
    if constexpr (std::is_integral_v<Number>) {
      is_number = absl::SimpleAtoi(text, &number);
    } else {
      is_number = absl::SimpleAtod(text, &number);
    }
    if (is_number && range.Has(number)) *result = number;
    return is_number && range.Has(number);
  }

  std::vector<std::string>* const problems_;
};

}  // namespace

DefaultOptions OptionsFromEnvironment(std::vector<std::string>* problems) {
  DefaultOptions options;
  Environment environment(problems);

#define SWITCH(variable, field) environment.ReadSwitch(variable, &options.field);
#define TEXT(variable, field) Environment::ReadText(variable, &options.field);
#define RANGE(field, ...) \
  Range<decltype(DefaultOptions::field)> { __VA_ARGS__ }
#define NUMBER(variable, field, least, most) \
  environment.ReadNumber(variable, RANGE(field, least, most), &options.field);
#define NUMBER_OR_0(variable, field, least, most) \
  environment.ReadNumber(variable, RANGE(field, least, most, true), &options.field);
#define PAIR(variable, field, least, most, unit, second, second_least, second_most) \
  environment.ReadPair(variable, RANGE(field, least, most), &options.field, unit,   \
                       RANGE(second, second_least, second_most, true), &options.second);
#include "src/api/public/options.inc"
  if (options.oom_output == "silent") {
    options.oom_output.clear();
    options.oom_report = false;
  }
  environment.ReadTags("HBMPROF_TAGS", &options.tags);
  const std::string_view unwinder = Environment::Value("HBMPROF_UNWINDER");
  if (unwinder == "native") {
    options.python = false;
  } else if (unwinder == "fp") {
    options.unwinder = Unwinder::kFramePointer;
  } else if (unwinder == "none") {
    options.unwinder = Unwinder::kNone;
  } else if (!unwinder.empty() && unwinder != "auto") {
    environment.Complain("HBMPROF_UNWINDER", unwinder, "auto, native, fp or none", "auto");
  }
  environment.FindUnknown();
  return options;
}

absl::Status internal::ValidateOptions(const DefaultOptions& options) {
  const auto check = [](const char* field, const auto& range, auto value) {
    return range.Has(value) ? absl::OkStatus()
                            : absl::InvalidArgumentError(
                                  absl::StrCat("hbmprof: the option ", field, " is ", value, ", not ", range.Text()));
  };
  absl::Status status;
#define SWITCH(variable, field)
#define TEXT(variable, field)
#define NUMBER(variable, field, least, most) status.Update(check(#field, RANGE(field, least, most), options.field));
#define NUMBER_OR_0(variable, field, least, most) \
  status.Update(check(#field, RANGE(field, least, most, true), options.field));
#define PAIR(variable, field, least, most, unit, second, second_least, second_most) \
  NUMBER(variable, field, least, most) NUMBER_OR_0(variable, second, second_least, second_most)
#include "src/api/public/options.inc"
  const Unwinder unwinder = options.unwinder;
  if (unwinder != Unwinder::kAuto && unwinder != Unwinder::kFramePointer && unwinder != Unwinder::kNone) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        "hbmprof: the option unwinder is ", static_cast<int>(unwinder), ", which is not a value of Unwinder")));
  }
  return status;
}

}  // namespace hbmprof
