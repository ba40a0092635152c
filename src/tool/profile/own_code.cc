#include "src/tool/profile/own_code.h"

namespace hbmprof::tool {

absl::StatusOr<KnownLibraries> KnownLibraries::Make(const std::vector<std::string>& more) {
  KnownLibraries libraries;
  for (const std::string& text : more) {
    std::string name = text;
    std::string expression = text;
    RE2::FullMatch(text, R"(([\w.+-]+)=(.+))", &name, &expression);
    ASSIGN_OR_RETURN(std::unique_ptr<RE2> compiled, CompileRegex("--known", expression));
    libraries.more_.push_back({std::make_unique<const std::string>(std::move(name)), NamePattern(std::move(compiled))});
  }
  return libraries;
}

internal::FrameOwner KnownLibraries::OwnerOf(const ProfileSet& profiles, ProfileSet::String name,
                                             ProfileSet::String source, ProfileSet::String binary) {
  for (Library& library : more_) {
    for (const ProfileSet::String text : {name, source, binary}) {
      if (text != 0 && library.pattern.Matches(profiles, text)) return {internal::CodeRole::kLibrary, *library.name};
    }
  }
  internal::FrameOwner owner = internal::OwnerOf(profiles.text(name), profiles.text(source), profiles.text(binary));
  if (owner.role == internal::CodeRole::kPackage) owner.library = *packages_.insert(std::string(owner.library)).first;
  return owner;
}

std::vector<internal::FrameOwner> KnownLibraries::OwnersOf(const ProfileSet& profiles, uint64_t number) {
  const ProfileSet::Location& location = profiles.locations()[number];
  std::vector<internal::FrameOwner> owners;
  if (location.frames.empty()) owners.push_back(OwnerOf(profiles, 0, 0, location.object));
  for (const ProfileSet::Frame& frame : location.frames) {
    const ProfileSet::Function& function = profiles.functions()[frame.function];
    owners.push_back(OwnerOf(profiles, function.name, function.filename, location.object));
  }
  return owners;
}

bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles) {
  // By location: the index of its first own frame, and the location from this frame on.
  struct Own {
    std::optional<size_t> frame;
    uint64_t location;
  };
  const size_t count = profiles.locations().size();
  std::vector<Own> own[2] = {std::vector<Own>(count), std::vector<Own>(count)};  // by whether the stack has own code
  bool is_all_own = true;
  for (uint64_t l = 0; l < count; ++l) {
    const std::vector<internal::FrameOwner> frames = libraries.OwnersOf(profiles, l);
    for (const bool has_own_code : {false, true}) {
      Own& here = own[has_own_code][l];
      here.location = l;
      for (size_t i = 0; i < frames.size() && !here.frame.has_value(); ++i) {
        if (internal::IsOwn(frames[i].role, has_own_code)) here.frame = i;
      }
      if (here.frame == 0) continue;
      is_all_own = false;
      if (!here.frame.has_value()) continue;
      if (has_own_code && here.frame == own[false][l].frame) {
        here.location = own[false][l].location;
        continue;
      }
      ProfileSet::Location rest = profiles.locations()[l];
      rest.frames.erase(rest.frames.begin(), rest.frames.begin() + static_cast<std::ptrdiff_t>(*here.frame));
      here.location = profiles.AddLocation(std::move(rest));
    }
  }
  if (is_all_own) return false;
  bool changed = false;  // a leaf
  profiles.MapStacks([&](uint32_t stack) {
    std::vector<uint64_t> locations(profiles.stacks().begin(stack), profiles.stacks().end(stack));
    const bool has_own_code =
        absl::c_any_of(locations, [&](uint64_t location) { return own[true][location].frame.has_value(); });
    const std::vector<Own>& owners = own[has_own_code];
    size_t first = 0;
    while (first < locations.size() && !owners[locations[first]].frame.has_value()) ++first;
    if (first == locations.size()) return stack;
    const size_t all = locations.size();
    while (!owners[locations.back()].frame.has_value()) locations.pop_back();
    locations.erase(locations.begin(), locations.begin() + static_cast<std::ptrdiff_t>(first));
    const uint64_t leaf = std::exchange(locations[0], owners[locations[0]].location);
    changed = changed || first != 0 || locations[0] != leaf;
    return locations.size() == all && locations[0] == leaf ? stack : profiles.StackOf(locations);
  });
  return changed;
}

}  // namespace hbmprof::tool
