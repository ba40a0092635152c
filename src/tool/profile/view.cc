#include "src/tool/profile/view.h"

#include "src/tool/profile/labels.h"
#include "src/tool/profile/own_code.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// The argument of --focus or --ignore: a regular expression for binaries, source files and functions.
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

  bool Matches(const ProfileSet& profiles, const ProfileSet::Location& location) {
    const auto matches = [&](ProfileSet::String text) { return pattern_.Matches(profiles, text); };
    const bool found = (location.object != 0 && matches(location.object)) ||
                       absl::c_any_of(location.frames, [&](const ProfileSet::Frame& frame) {
                         const ProfileSet::Function& function = profiles.functions()[frame.function];
                         return matches(function.name) || matches(function.filename);
                       });
    had_effect = had_effect || found;
    return found;
  }

 private:
  const char* option_;
  NamePattern pattern_;
};

// Removes samples by the names of their frames, with the meaning of pprof's focus and ignore.
class FrameFilters {
 public:
  absl::Status Set(const ViewOptions& options) {
    RETURN_IF_ERROR(focus_.Set(options.focus));
    return ignore_.Set(options.ignore);
  }

  // Calls `warn` with each option that matches no frame.
  void Apply(ProfileSet& profiles, const std::function<void(const char*)>& warn) {
    if (!focus_.is_set() && !ignore_.is_set()) return;
    std::vector<bool> focused;  // by location
    std::vector<bool> ignored;
    for (const ProfileSet::Location& location : profiles.locations()) {
      focused.push_back(!focus_.is_set() || focus_.Matches(profiles, location));
      ignored.push_back(ignore_.is_set() && ignore_.Matches(profiles, location));
    }
    profiles.MapStacks([&](uint32_t stack) {
      const uint64_t* const begin = profiles.stacks().begin(stack);
      const uint64_t* const end = profiles.stacks().end(stack);
      const bool keeps = std::any_of(begin, end, [&](uint64_t location) { return focused[location]; }) &&
                         std::none_of(begin, end, [&](uint64_t location) { return ignored[location]; });
      return keeps ? std::optional(stack) : std::nullopt;
    });
    for (const FramePattern* pattern : {&focus_, &ignore_}) {
      if (pattern->is_set() && !pattern->had_effect) warn(pattern->option());
    }
  }

 private:
  FramePattern focus_{"--focus"};
  FramePattern ignore_{"--ignore"};
};

// One --where: KEY=VALUE, or KEY!=VALUE.
struct Where {
  std::string key;
  std::string value;
  bool is_not = false;

  // Returns whether it selects samples with this text of the label, "" if it is missing. Tables show a missing label
  // as "-".
  bool Keeps(std::string_view text) const { return (value == text || (value == "-" && text.empty())) != is_not; }
};

absl::StatusOr<std::vector<Where>> ParseWhere(const std::vector<std::string>& options) {
  std::vector<Where> list;
  for (const std::string& text : options) {
    const size_t equals = text.find('=');
    const bool is_not = equals != std::string::npos && equals > 0 && text[equals - 1] == '!';
    const std::string key = text.substr(0, is_not ? equals - 1 : equals);
    if (equals == std::string::npos || key.empty()) {
      return InvalidArgument("--where ", text, ": write a label as KEY=VALUE, such as device=GPU:0");
    }
    list.push_back({key, text.substr(equals + 1), is_not});
  }
  return list;
}

}  // namespace

bool ViewOptions::Names(const std::string& label) const {
  return absl::c_linear_search(by, label) || absl::c_any_of(where, [&](const std::string& text) {
           return text.rfind(label + "=", 0) == 0 || text.rfind(label + "!=", 0) == 0;
         });
}

absl::Status ApplyFilters(const std::string& command, const ViewOptions& options, ProfileSet& profiles) {
  ASSIGN_OR_RETURN(const std::vector<Where> where, ParseWhere(options.where));
  FrameFilters frames;
  RETURN_IF_ERROR(frames.Set(options));
  if (options.Names(kRankLabel)) LabelRanks(profiles);
  if (options.Names(kLibraryLabel)) {
    ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
    LabelLibraries(libraries, profiles);
  }
  const auto warn = [&](const char* option) { PrintError(command, Cat("warning: ", option, " matches nothing")); };
  for (const Where& one : where) RETURN_IF_ERROR(profiles.CheckLabelKey("--where", one.key));
  if (!where.empty()) {
    bool matches = false;  // a set of labels
    profiles.FilterLabels(ProfileSet::Removed::kNotInTotal, [&](uint32_t set) {
      const bool has_all =
          absl::c_all_of(where, [&](const Where& one) { return one.Keeps(profiles.LabelText(set, one.key)); });
      matches = matches || has_all;
      return has_all;
    });
    if (!matches) warn("--where");
  }
  frames.Apply(profiles, warn);
  return absl::OkStatus();
}

bool WhereKeeps(const ViewOptions& options, const std::vector<std::pair<std::string, std::string>>& labels) {
  const absl::StatusOr<std::vector<Where>> where = ParseWhere(options.where);
  return where.ok() && absl::c_all_of(*where, [&](const Where& one) {
           const auto found = absl::c_find_if(labels, [&](const auto& label) { return label.first == one.key; });
           return one.Keeps(found == labels.end() ? std::string_view() : found->second);
         });
}

absl::Status ApplyView(const std::string& command, const ViewOptions& options, ProfileSet& profiles, bool* trimmed) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
  RETURN_IF_ERROR(ApplyFilters(command, options, profiles));
  const bool changed = options.own && AttributeToOwnCode(libraries, profiles);
  if (trimmed != nullptr) *trimmed = changed;
  return absl::OkStatus();
}

}  // namespace hbmprof::tool
