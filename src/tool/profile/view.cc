#include "src/tool/profile/view.h"

#include "src/tool/profile/labels.h"

namespace hbmprof::tool {
namespace {

// Removes samples by the names of their frames, with the meaning of pprof's focus and ignore: a regular expression
// matches binaries, source files and functions. Calls `warn` with an option that matches no frame.
absl::Status FilterFrames(const char* option, const std::string& expression, bool is_focus, ProfileSet& profiles,
                          const std::function<void(const char*)>& warn) {
  if (expression.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex(option, expression));
  NamePattern pattern(std::move(compiled));
  const auto matches = [&](ProfileSet::String text) { return pattern.Matches(profiles, text); };
  std::vector<bool> found;  // by location
  for (const ProfileSet::Location& location : profiles.locations()) {
    found.push_back((location.object != 0 && matches(location.object)) ||
                    absl::c_any_of(location.frames, [&](const ProfileSet::Frame& frame) {
                      const ProfileSet::Function& function = profiles.functions()[frame.function];
                      return matches(function.name) || matches(function.filename);
                    }));
  }
  if (!absl::c_linear_search(found, true)) warn(option);
  profiles.MapStacks([&](uint32_t stack) {
    const std::vector<uint64_t>& locations = profiles.stacks()[stack];
    const bool is_match = absl::c_any_of(locations, [&](uint64_t location) { return found[location]; });
    return is_match == is_focus && !locations.empty() ? std::optional(stack) : std::nullopt;
  });
  return absl::OkStatus();
}

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
  RETURN_IF_ERROR(FilterFrames("--focus", options.focus, true, profiles, warn));
  return FilterFrames("--ignore", options.ignore, false, profiles, warn);
}

absl::Status ApplyView(const std::string& command, const ViewOptions& options, ProfileSet& profiles, bool* trimmed) {
  ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(options.known));
  RETURN_IF_ERROR(ApplyFilters(command, options, profiles));
  const bool changed = options.own && AttributeToOwnCode(libraries, profiles);
  if (trimmed != nullptr) *trimmed = changed;
  return absl::OkStatus();
}

}  // namespace hbmprof::tool
