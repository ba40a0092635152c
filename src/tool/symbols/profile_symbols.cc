#include "src/tool/symbols/profile_symbols.h"

#include <climits>
#include <filesystem>
#include <mutex>
#include <tuple>

#include "src/export/known_code.h"

namespace hbmprof::tool {
namespace {

// Returns whether `path` can be a file with code. Special mappings such as [vdso] are not files.
bool IsFileOfCode(std::string_view path) {
  return !path.empty() && path[0] != '[' && path.find("linux-vdso") == std::string::npos &&
         path.compare(0, 2, "//") != 0 && path.compare(0, 6, "/memfd") != 0 && path.compare(0, 5, "/dev/") != 0;
}

// REQUIRES: the location has a mapping.
const pprof::Mapping& MappingOf(const pprof::Location& location, const pprof::Profile& profile) {
  return profile.mapping(static_cast<int>(location.mapping_id()) - 1);
}

// Returns the offset of the code in the mapped file.
uint64_t OffsetOf(const pprof::Location& location, const pprof::Profile& profile) {
  const pprof::Mapping& mapping = MappingOf(location, profile);
  return location.address() - mapping.memory_start() + mapping.file_offset();
}

// Opens the module's file: one with the right build id, preferably with DWARF. Returns null if there is none.
std::unique_ptr<DwarfSymbolizer> OpenFile(const DebugFiles& debug_files, ProfileModule& module) {
  std::unique_ptr<DwarfSymbolizer> chosen;
  for (const std::string& candidate : debug_files.Candidates(module.path, module.build_id)) {
    const std::string build_id = BuildIdOf(candidate);
    if (build_id != module.build_id) {
      const auto shown = [](const std::string& id) { return id.empty() ? std::string("none") : id; };
      module.problem = Cat(candidate, " has the build id ", shown(build_id), ", not ", shown(module.build_id));
      continue;
    }
    auto symbolizer = DwarfSymbolizer::Open(candidate);
    if (!symbolizer.ok()) {
      module.problem = MessageOf(symbolizer.status());
      continue;
    }
    module.has_dwarf = (*symbolizer)->has_dwarf();
    if (chosen != nullptr && !module.has_dwarf) continue;
    chosen = *std::move(symbolizer);
    module.file = candidate;
    if (module.has_dwarf) break;
  }
  if (module.file.empty() && module.problem.empty()) {
    module.problem = module.build_id.empty() ? "no such file, and the profile has no build id to look for"
                                             : Cat("no file with the build id ", module.build_id);
  }
  return chosen;
}

}  // namespace

void FindFrames(const DebugFiles& debug_files, const pprof::Profile& profile, ProfileModule& module) {
  const std::unique_ptr<DwarfSymbolizer> symbolizer = OpenFile(debug_files, module);
  if (symbolizer == nullptr) return;
  std::vector<uint64_t> addresses;
  for (const pprof::Location* location : module.locations) {
    const uint64_t mapping_offset = MappingOf(*location, profile).file_offset();
    addresses.push_back(symbolizer->AddressOf(OffsetOf(*location, profile), mapping_offset));
  }
  module.frames = symbolizer->Symbolize(addresses);
}

std::map<std::pair<std::string, std::string>, ProfileModule> ModulesOf(RawProfile& profile) {
  std::map<std::pair<std::string, std::string>, ProfileModule> modules;
  for (pprof::Location& location : *profile.message().mutable_location()) {
    if (location.mapping_id() == 0 || location.address() == 0) continue;
    const pprof::Mapping& mapping = MappingOf(location, profile.message());
    const std::string_view path = profile.text(mapping.filename());
    const std::string_view build_id = profile.text(mapping.build_id());
    // The limit is needed because many mappings could use one long text.
    if (!IsFileOfCode(path) || path.size() >= PATH_MAX || build_id.size() >= PATH_MAX) continue;
    ProfileModule& module = modules[{std::string(build_id), std::string(build_id.empty() ? path : "")}];
    module.path = path;
    module.build_id = build_id;
    module.locations.push_back(&location);
  }
  return modules;
}

void WriteFrames(const std::vector<ProfileModule*>& modules, pprof::Profile& profile) {
  StringTable texts(profile);
  absl::flat_hash_map<std::tuple<int64_t, int64_t, int64_t, int64_t>, uint64_t> ids;  // of functions
  for (const pprof::Function& function : profile.function()) {
    ids[{function.name(), function.system_name(), function.filename(), function.start_line()}] = function.id();
  }
  const auto id_of = [&](const SourceFrame& frame) {
    pprof::Function function;
    function.set_id(static_cast<uint64_t>(profile.function_size()) + 1);
    function.set_name(texts.Of(frame.name));
    function.set_system_name(texts.Of(frame.system_name));
    function.set_filename(texts.Of(frame.file));
    function.set_start_line(frame.start_line);
    const auto [entry, is_new] = ids.try_emplace(
        {function.name(), function.system_name(), function.filename(), function.start_line()}, function.id());
    if (is_new) *profile.add_function() = function;
    return entry->second;
  };
  for (const ProfileModule* module : modules) {
    for (size_t i = 0; i < module->frames.size(); ++i) {
      pprof::Location& location = *module->locations[i];
      const std::vector<SourceFrame>& frames = module->frames[i];
      // A symbol table has no more information than the names in the profile, so these are kept.
      if (frames.empty() || (!module->has_dwarf && location.line_size() > 0)) continue;
      pprof::Mapping& mapping = *profile.mutable_mapping(static_cast<int>(location.mapping_id()) - 1);
      location.clear_line();
      mapping.set_has_functions(true);
      if (frames.size() > 1) mapping.set_has_inline_frames(true);
      for (const SourceFrame& frame : frames) {
        pprof::Line& line = *location.add_line();
        line.set_function_id(id_of(frame));
        line.set_line(frame.line);
        if (!frame.file.empty()) mapping.set_has_filenames(true);
        if (frame.line != 0) mapping.set_has_line_numbers(true);
      }
    }
  }
}

namespace {

// The positions that AddLines has found.
class KnownLines {
 public:
  // Adds the files and lines of a module's locations as frames.
  void Find(const pprof::Profile& profile, ProfileModule& module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    OneModule& known = modules_[{module.path, module.build_id}];
    ProfileModule missing = {module.path, module.build_id};
    for (pprof::Location* location : module.locations) {
      if (!known.positions.contains(OffsetOf(*location, profile))) missing.locations.push_back(location);
    }
    if (!missing.locations.empty() && IsReadable(missing, known)) FindFrames(DebugFiles({}), profile, missing);
    missing.frames.resize(missing.locations.size());
    for (size_t i = 0; i < missing.locations.size(); ++i) {
      SourceFrame& position = known.positions[OffsetOf(*missing.locations[i], profile)];
      if (missing.has_dwarf && !missing.frames[i].empty()) position = missing.frames[i].back();
    }
    for (const pprof::Location* location : module.locations) {
      const SourceFrame& position = known.positions[OffsetOf(*location, profile)];
      module.frames.emplace_back();
      if (!position.file.empty()) module.frames.back().push_back(position);
    }
    module.has_dwarf = true;
  }

 private:
  struct OneModule {
    std::optional<bool> is_readable;
    absl::flat_hash_map<uint64_t, SourceFrame> positions;  // by offset in the file; without a file if not known
  };

  // Larger files take seconds: `hbmprof symbolize` reads them.
  static constexpr uintmax_t kMostBytes = uintmax_t{256} << 20;

  static bool IsReadable(const ProfileModule& module, OneModule& known) {
    if (!known.is_readable.has_value()) {
      std::error_code error;
      known.is_readable = internal::OwnerOf("", "", module.path).role == internal::CodeRole::kOwnCode &&
                          std::filesystem::file_size(module.path, error) <= kMostBytes && !error &&
                          BuildIdOf(module.path) == module.build_id && HasDebugInformation(module.path);
    }
    return *known.is_readable;
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, OneModule> modules_;  // guarded by mutex_
};

}  // namespace

void AddLines(RawProfile& profile) {
  static KnownLines& known = *new KnownLines();
  pprof::Profile& message = profile.message();
  auto modules = ModulesOf(profile);
  std::vector<ProfileModule*> found;
  for (auto& [key, module] : modules) {
    std::vector<pprof::Location*>& locations = module.locations;
    const auto has_position = [&](const pprof::Location* location) {
      return location->line_size() != 1 ||
             message.function(static_cast<int>(location->line(0).function_id()) - 1).filename() != 0;
    };
    EraseIf(locations, has_position);
    if (locations.empty() || module.build_id.empty()) continue;
    known.Find(message, module);
    for (size_t i = 0; i < locations.size(); ++i) {
      if (module.frames[i].empty()) continue;
      const pprof::Function& function = message.function(static_cast<int>(locations[i]->line(0).function_id()) - 1);
      module.frames[i][0].name = profile.text(function.name());
      module.frames[i][0].system_name = profile.text(function.system_name());
    }
    if (module.found() > 0) found.push_back(&module);
  }
  if (!found.empty()) WriteFrames(found, message);
}

absl::StatusOr<ProfileSet> ParseWithLines(const std::vector<ProfileBytes>& profiles) {
  return ProfileSet::ReadEach(profiles.size(), [&](size_t i) -> absl::StatusOr<ProfileSet::Named> {
    ASSIGN_OR_RETURN(RawProfile raw, ParseProfile(profiles[i].bytes, profiles[i].name));
    AddLines(raw);
    return ProfileSet::Named{profiles[i].name, std::move(raw)};
  });
}

}  // namespace hbmprof::tool
