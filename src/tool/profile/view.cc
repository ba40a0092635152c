#include "src/tool/profile/view.h"

#include "src/tool/profile/libraries.h"
#include "src/tool/profile/own_code.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// The argument of an option: a regular expression for frames and locations.
class FramePattern {
 public:
  explicit FramePattern(const char* option) : option_(option) {}
  absl::Status Set(const std::string& expression) {
    if (expression.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex(option_, expression));
    pattern_ = NamePattern(std::move(compiled));
    return absl::OkStatus();
  }
  const char* option() const { return option_; }
  bool is_set() const { return pattern_.is_set(); }
  bool had_effect = false;

  bool MatchesFrame(const ProfileSet& profiles, const ProfileSet::Frame& frame) {
    const ProfileSet::Function& function = profiles.functions()[frame.function];
    return pattern_.Matches(profiles, function.name) || pattern_.Matches(profiles, function.filename);
  }
  // Returns whether the binary matches; false for a location without a mapping.
  bool MatchesBinary(const ProfileSet& profiles, const ProfileSet::Location& location) {
    return location.object != 0 && pattern_.Matches(profiles, location.object);
  }
  bool MatchesLocation(const ProfileSet& profiles, const ProfileSet::Location& location) {
    return MatchesBinary(profiles, location) || absl::c_any_of(location.frames, [&](const ProfileSet::Frame& frame) {
             return MatchesFrame(profiles, frame);
           });
  }

 private:
  const char* option_;
  NamePattern pattern_;
};

// Removes samples and frames by the names of their frames, with the meaning of pprof's focus, ignore, hide, show and
// show_from. As in pprof, an edit of a location applies to every stack that contains it.
class FrameFilters {
 public:
  absl::Status Set(const ViewOptions& options) {
    RETURN_IF_ERROR(focus_.Set(options.focus));
    RETURN_IF_ERROR(ignore_.Set(options.ignore));
    RETURN_IF_ERROR(hide_.Set(options.hide));
    RETURN_IF_ERROR(show_.Set(options.show));
    return show_from_.Set(options.show_from);
  }

  // Calls `warn` with each option that matches no frame.
  void Apply(ProfileSet& profiles, const std::function<void(const char*)>& warn) {
    if (!focus_.is_set() && !ignore_.is_set() && !hide_.is_set() && !show_.is_set() && !show_from_.is_set()) return;
    decisions_.resize(profiles.locations().size());
    for (uint64_t l = 0; l < decisions_.size(); ++l) Examine(profiles, l);
    profiles.MapStacks([&](uint32_t stack) { return StackOf(profiles, stack); });
    for (const FramePattern* pattern : {&focus_, &ignore_, &hide_, &show_, &show_from_}) {
      if (pattern->is_set() && !pattern->had_effect) warn(pattern->option());
    }
  }

 private:
  struct Decision {
    bool focused = false;
    bool ignored = false;
    bool hidden = false;
    bool shown_from = false;
  };

  void Examine(ProfileSet& profiles, uint64_t number) {
    const ProfileSet::Location& location = profiles.locations()[number];
    Decision& decision = decisions_[number];
    if (ignore_.is_set() && ignore_.MatchesLocation(profiles, location)) {
      decision.ignored = ignore_.had_effect = true;
    } else if (!focus_.is_set() || focus_.MatchesLocation(profiles, location)) {
      decision.focused = focus_.had_effect = true;
    }
    std::vector<ProfileSet::Frame> frames = location.frames;
    if (hide_.is_set() && hide_.MatchesLocation(profiles, location)) {
      hide_.had_effect = true;
      EraseIf(frames, [&](const ProfileSet::Frame& frame) {
        return hide_.MatchesBinary(profiles, location) || hide_.MatchesFrame(profiles, frame);
      });
      decision.hidden = frames.empty();
    }
    if (show_.is_set()) {
      // As in pprof, code without a function name is hidden even if its binary matches.
      if (!show_.MatchesBinary(profiles, location)) {
        EraseIf(frames, [&](const ProfileSet::Frame& frame) { return !show_.MatchesFrame(profiles, frame); });
      }
      decision.hidden = decision.hidden || frames.empty();
      show_.had_effect = show_.had_effect || !frames.empty();
    }
    if (show_from_.is_set()) {
      decision.shown_from = show_from_.MatchesBinary(profiles, location);
      for (size_t i = frames.size(); i-- > 0 && !decision.shown_from;) {
        if (!show_from_.MatchesFrame(profiles, frames[i])) continue;
        decision.shown_from = true;
        frames.resize(i + 1);
      }
      show_from_.had_effect = show_from_.had_effect || decision.shown_from;
    }
    if (frames.size() != location.frames.size() && !frames.empty()) profiles.SetFrames(number, std::move(frames));
  }

  // Returns the stack that remains of `stack`; nullopt if its samples are removed.
  std::optional<uint32_t> StackOf(ProfileSet& profiles, uint32_t stack) const {
    std::vector<uint64_t> locations(profiles.stacks().begin(stack), profiles.stacks().end(stack));
    if (focus_.is_set() || ignore_.is_set() || hide_.is_set() || show_.is_set()) {
      bool focused = false;
      bool hidden = false;
      for (const uint64_t location : locations) {
        if (decisions_[location].ignored) return std::nullopt;
        focused = focused || decisions_[location].focused;
        hidden = hidden || decisions_[location].hidden;
      }
      if (!focused) return std::nullopt;
      EraseIf(locations, [this](uint64_t location) { return decisions_[location].hidden; });
      if (hidden && locations.empty()) return std::nullopt;
    }
    if (show_from_.is_set()) {
      while (!locations.empty() && !decisions_[locations.back()].shown_from) locations.pop_back();
      if (locations.empty()) return std::nullopt;
    }
    return profiles.StackOf(locations);
  }

  FramePattern focus_{"--focus"};
  FramePattern ignore_{"--ignore"};
  FramePattern hide_{"--hide"};
  FramePattern show_{"--show"};
  FramePattern show_from_{"--show-from"};
  std::vector<Decision> decisions_;  // by location
};

// A range of numbers with a unit: "32kb", ":64kb", "4mb:", "12kb:64mb", both ends included.
struct Range {
  std::optional<double> least;
  std::optional<double> greatest;
  std::string unit;

  // Returns nothing if `text` is not a range. Error: kInvalidArgument for a number beyond int64.
  static absl::StatusOr<std::optional<Range>> Parse(const std::string& option, const std::string& text) {
    static const RE2 kPattern("(([+-]?[0-9]+)([A-Za-z]+)?)?(:)?(([+-]?[0-9]+)([A-Za-z]+)?)?");
    std::string low, low_number, low_unit, colon, high, high_number, high_unit;
    if (!RE2::FullMatch(text, kPattern, &low, &low_number, &low_unit, &colon, &high, &high_number, &high_unit) ||
        (low.empty() && high.empty()) || (colon.empty() && !high.empty())) {
      return std::optional<Range>();
    }
    int64_t first = 0;
    int64_t second = 0;
    if ((!low.empty() && !absl::SimpleAtoi(low_number, &first)) ||
        (!high.empty() && !absl::SimpleAtoi(high_number, &second))) {
      return InvalidArgument(option, " ", text, ": the number is too large");
    }
    Range range;
    if (low.empty()) {
      const ScaledValue end = Scale(second, high_unit, high_unit);
      range.unit = end.unit;
      range.greatest = end.value;
      return std::optional<Range>(range);
    }
    const ScaledValue begin = Scale(first, low_unit, low_unit);
    range.unit = begin.unit;
    range.least = begin.value;
    if (colon.empty()) range.greatest = begin.value;
    if (!high.empty()) {
      const ScaledValue end = Scale(second, high_unit, range.unit);
      if (end.unit != range.unit) return std::optional<Range>();
      range.greatest = end.value;
    }
    return std::optional<Range>(range);
  }

  bool Contains(int64_t value, const std::string& of_unit) const {
    const ScaledValue scaled = Scale(value, of_unit, unit);
    return scaled.unit == unit && (!least.has_value() || scaled.value >= *least) &&
           (!greatest.has_value() || scaled.value <= *greatest);
  }
};

// Decides which label sets match the argument of --tagfocus or --tagignore: "KEY=RANGE", "RANGE", "KEY=REGEX,REGEX"
// (one of them must match the value) or "REGEX,REGEX" (each must match "KEY:VALUE" of some label), as in pprof.
class TagFilter {
 public:
  absl::Status Set(const std::string& option, const std::string& argument) {
    if (argument.empty()) return absl::OkStatus();
    option_ = option;
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) key_ = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? argument : argument.substr(equals + 1);
    ASSIGN_OR_RETURN(range_, Range::Parse(option, value));
    if (range_.has_value()) return absl::OkStatus();
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, ','))) {
      ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex(option, part));
      expressions_.push_back(std::move(compiled));
    }
    return absl::OkStatus();
  }
  // Must be called between Set and Matches. `is_part`: see ViewOptions. Error: kInvalidArgument for a label that no
  // sample has.
  absl::Status Bind(const ProfileSet& profiles, bool is_part) {
    if (range_.has_value()) FindUnits(profiles);
    return key_.has_value() && !is_part ? profiles.CheckLabelKey(option_, *key_) : absl::OkStatus();
  }
  bool is_set() const { return !option_.empty(); }

  bool Matches(const ProfileSet& profiles, uint32_t label_set) const {
    const std::vector<ProfileSet::Label>& labels = profiles.labels(label_set);
    if (range_.has_value()) {
      return absl::c_any_of(labels, [&](const ProfileSet::Label& label) {
        return IsWanted(profiles, label) && label.text == 0 && range_->Contains(label.number, units_.at(label.key));
      });
    }
    const auto any_label = [&](const RE2& expression) {
      return absl::c_any_of(labels, [&](const ProfileSet::Label& label) {
        if (label.text == 0 || !IsWanted(profiles, label)) return false;
        const std::string& value = profiles.text(label.text);
        return RE2::PartialMatch(key_.has_value() ? value : Cat(profiles.text(label.key), ":", value), expression);
      });
    };
    const auto matches = [&](const std::unique_ptr<RE2>& expression) { return any_label(*expression); };
    return key_.has_value() ? absl::c_any_of(expressions_, matches) : absl::c_all_of(expressions_, matches);
  }

 private:
  bool IsWanted(const ProfileSet& profiles, const ProfileSet::Label& label) const {
    return !key_.has_value() || profiles.text(label.key) == *key_;
  }

  // A numeric label has one unit for all its values: the first unit that the profiles give for it. If they give none,
  // the unit is the label's key, or bytes for the labels "alignment" and "request".
  void FindUnits(const ProfileSet& profiles) {
    for (const ProfileSet::File& file : profiles.files()) {
      for (const ProfileSet::Sample& sample : file.samples) {
        for (const ProfileSet::Label& label : profiles.labels(sample.labels)) {
          std::string& unit = units_[label.key];
          if (unit.empty()) unit = profiles.text(label.unit);
        }
      }
    }
    for (auto& [key, unit] : units_) {
      const std::string& name = profiles.text(key);
      if (unit.empty()) unit = name == "alignment" || name == "request" ? "bytes" : name;
    }
  }

  std::string option_;
  std::optional<std::string> key_;
  std::optional<Range> range_;
  std::vector<std::unique_ptr<RE2>> expressions_;
  std::map<ProfileSet::String, std::string> units_;
};

using LabelTexts = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<LabelTexts> ParseWhere(const std::vector<std::string>& where) {
  LabelTexts labels;
  for (const std::string& text : where) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument("--where ", text, ": write a label as KEY=VALUE, such as device=GPU:0");
    }
    labels.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return labels;
}

// Returns whether `wanted` selects `value`, the text of a label; "" if it is missing. Tables show a missing label as
// "-".
bool IsWanted(const std::string& wanted, std::string_view value) {
  return wanted == value || (wanted == "-" && value.empty());
}

// Removes the samples that lack one of the labels. Sets `matches` to whether a set of labels has them all. Error:
// kInvalidArgument for a label that no sample has, unless `is_part` (ViewOptions).
absl::Status ApplyWhere(const LabelTexts& labels, bool is_part, ProfileSet& profiles, bool* matches) {
  for (const auto& label : labels) {
    if (!is_part) RETURN_IF_ERROR(profiles.CheckLabelKey("--where", label.first));
  }
  if (labels.empty()) return absl::OkStatus();
  *matches = false;
  profiles.FilterLabels(ProfileSet::Removed::kNotInTotal, [&](uint32_t set) {
    const bool has_all = absl::c_all_of(
        labels, [&](const auto& label) { return IsWanted(label.second, profiles.LabelText(set, label.first)); });
    *matches = *matches || has_all;
    return has_all;
  });
  return absl::OkStatus();
}

struct Filters {
  LabelTexts where;
  FrameFilters frames;
  TagFilter tag_focus;
  TagFilter tag_ignore;

  absl::Status Set(const ViewOptions& options) {
    ASSIGN_OR_RETURN(where, ParseWhere(options.where));
    RETURN_IF_ERROR(frames.Set(options));
    RETURN_IF_ERROR(tag_focus.Set("--tagfocus", options.tag_focus));
    return tag_ignore.Set("--tagignore", options.tag_ignore);
  }
};

}  // namespace

bool ViewOptions::has_filter() const {
  return !focus.empty() || !ignore.empty() || !hide.empty() || !show.empty() || !show_from.empty() ||
         !tag_focus.empty() || !tag_ignore.empty();
}

bool ViewOptions::needs_libraries() const {
  const std::string begin = Cat(kLibraryLabel, "=");
  const auto begins = [&](const std::string& text) { return text.compare(0, begin.size(), begin) == 0; };
  return absl::c_linear_search(by, kLibraryLabel) || absl::c_any_of(where, begins) || begins(tag_focus) ||
         begins(tag_ignore);
}

absl::Status ApplyFilters(const std::string& command, const ViewOptions& options, ProfileSet& profiles) {
  Filters filters;
  RETURN_IF_ERROR(filters.Set(options));
  if (options.needs_libraries()) {
    ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
    LabelLibraries(libraries, profiles);
  }
  TagFilter& tag_focus = filters.tag_focus;
  TagFilter& tag_ignore = filters.tag_ignore;
  bool where_matches = true;
  RETURN_IF_ERROR(ApplyWhere(filters.where, options.is_part, profiles, &where_matches));
  RETURN_IF_ERROR(tag_focus.Bind(profiles, options.is_part));
  RETURN_IF_ERROR(tag_ignore.Bind(profiles, options.is_part));
  const auto warn = [&](const char* option) {
    if (!options.is_part) PrintError(command, Cat("warning: ", option, " matches nothing"));
  };
  if (!where_matches) warn("--where");
  filters.frames.Apply(profiles, warn);
  if (!tag_focus.is_set() && !tag_ignore.is_set()) return absl::OkStatus();
  bool any_focused = false;
  bool any_ignored = false;
  profiles.FilterLabels(ProfileSet::Removed::kInTotal, [&](uint32_t labels) {
    const bool focused = !tag_focus.is_set() || tag_focus.Matches(profiles, labels);
    const bool ignored = tag_ignore.is_set() && tag_ignore.Matches(profiles, labels);
    any_focused = any_focused || focused;
    any_ignored = any_ignored || ignored;
    return focused && !ignored;
  });
  if (tag_focus.is_set() && !any_focused) warn("--tagfocus");
  if (tag_ignore.is_set() && !any_ignored) warn("--tagignore");
  return absl::OkStatus();
}

bool WhereKeeps(const ViewOptions& options, const LabelTexts& labels) {
  const absl::StatusOr<LabelTexts> where = ParseWhere(options.where);
  return where.ok() && absl::c_all_of(*where, [&](const auto& wanted) {
           const auto found = absl::c_find_if(labels, [&](const auto& label) { return label.first == wanted.first; });
           return IsWanted(wanted.second, found == labels.end() ? std::string_view() : found->second);
         });
}

absl::Status CheckView(const ViewOptions& options) {
  Filters filters;
  RETURN_IF_ERROR(filters.Set(options));
  return KnownLibraries::Make(options.known).status();
}

absl::Status ApplyView(const std::string& command, const ViewOptions& options, ProfileSet& profiles, bool* trimmed) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
  RETURN_IF_ERROR(ApplyFilters(command, options, profiles));
  const bool changed = options.own && AttributeToOwnCode(libraries, profiles);
  if (trimmed != nullptr) *trimmed = changed;
  return absl::OkStatus();
}

}  // namespace hbmprof::tool
