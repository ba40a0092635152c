// See own_code.h.
#include "src/tool/profile/own_code.h"

#include <memory>
#include <optional>
#include <utility>

#include "src/export/known_code.h"
#include "src/tool/util/status_macros.h"

namespace hbmprof::tool {

absl::StatusOr<KnownLibraries> KnownLibraries::Make(const std::vector<std::string>& more) {
  KnownLibraries libraries;
  for (const std::string& expression : more) {
    ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex("--known", expression));
    libraries.more_.emplace_back(std::move(compiled));
  }
  return libraries;
}

bool KnownLibraries::IsOwn(const ProfileSet& profiles, ProfileSet::String name, ProfileSet::String source,
                           ProfileSet::String binary) {
  for (NamePattern& pattern : more_) {
    for (const ProfileSet::String text : {name, source, binary}) {
      if (text != 0 && pattern.Matches(profiles, text)) return false;
    }
  }
  return internal::IsOwnCode(profiles.text(name), profiles.text(source), profiles.text(binary));
}

std::vector<bool> KnownLibraries::OwnFrames(const ProfileSet& profiles, uint64_t number) {
  const ProfileSet::Location& location = profiles.locations()[number];
  std::vector<bool> own;
  if (location.frames.empty()) own.push_back(IsOwn(profiles, 0, 0, location.object));
  for (const ProfileSet::Frame& frame : location.frames) {
    const ProfileSet::Function& function = profiles.functions()[frame.function];
    own.push_back(IsOwn(profiles, function.name, function.filename, location.object));
  }
  return own;
}

bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles) {
  // By location: the index of its first own frame, and the location from this frame on.
  struct Own {
    std::optional<size_t> frame;
    uint64_t location;
  };
  std::vector<Own> own(profiles.locations().size());
  for (uint64_t l = 0; l < own.size(); ++l) {
    const std::vector<bool> frames = libraries.OwnFrames(profiles, l);
    own[l].location = l;
    for (size_t i = 0; i < frames.size() && !own[l].frame.has_value(); ++i) {
      if (frames[i]) own[l].frame = i;
    }
    if (own[l].frame.value_or(0) == 0) continue;
    ProfileSet::Location rest = profiles.locations()[l];
    rest.frames.erase(rest.frames.begin(), rest.frames.begin() + static_cast<std::ptrdiff_t>(*own[l].frame));
    own[l].location = profiles.AddLocation(std::move(rest));
  }
  bool changed = false;  // a leaf
  profiles.MapStacks([&](uint32_t stack) {
    std::vector<uint64_t> locations(profiles.stacks().begin(stack), profiles.stacks().end(stack));
    size_t first = 0;
    while (first < locations.size() && !own[locations[first]].frame.has_value()) ++first;
    if (first == locations.size()) return stack;
    while (!own[locations.back()].frame.has_value()) locations.pop_back();
    changed = changed || first != 0 || *own[locations[0]].frame != 0;
    locations.erase(locations.begin(), locations.begin() + static_cast<std::ptrdiff_t>(first));
    locations[0] = own[locations[0]].location;
    return profiles.StackOf(locations);
  });
  return changed;
}

}  // namespace hbmprof::tool
