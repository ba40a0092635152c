// See symbol_cache.h.
#include "src/tool/symbols/symbol_cache.h"

#include <cctype>
#include <filesystem>
#include <system_error>

#include "src/base/atomic_file.h"
#include "src/export/gzip.h"
#include "src/tool/profile/profile_reader.h"
#include "src/tool/symbols/debug_files.h"
#include "src/tool/symbols/rewrite.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/read_file.h"

namespace hbmprof::tool {

SymbolCache::SymbolCache(bool enabled) {
  if (const std::string cache = CacheFolder(); enabled && !cache.empty()) folder_ = cache + "/hbmprof";
}

std::string SymbolCache::PathOf(const std::string& build_id) const {
  // A profile can contain any text as a build id. Only hex is accepted, so it cannot be a path.
  const bool is_hex = absl::c_all_of(build_id, [](unsigned char c) { return std::isxdigit(c); });
  return folder_.empty() || build_id.size() < 8 || !is_hex ? "" : folder_ + "/" + build_id + ".symbols.pb.gz";
}

FramesByPosition SymbolCache::ReadAll(const std::string& build_id) const {
  FramesByPosition known;
  const std::string path = PathOf(build_id);
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return known;
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return known;
  CountInput(bytes->size());
  const absl::StatusOr<RawProfile> profile = ParseProfile(*bytes, path);
  if (!profile.ok()) return known;
  const pprof::Profile& message = profile->message();
  absl::flat_hash_map<uint64_t, const pprof::Function*> functions;
  for (const pprof::Function& function : message.function()) functions[function.id()] = &function;
  absl::flat_hash_map<uint64_t, uint64_t> mapping_offsets;
  for (const pprof::Mapping& mapping : message.mapping()) mapping_offsets[mapping.id()] = mapping.file_offset();
  for (const pprof::Location& location : message.location()) {
    std::vector<SourceFrame>& frames = known[{location.address(), mapping_offsets[location.mapping_id()]}];
    for (const pprof::Line& line : location.line()) {
      const pprof::Function& function = *functions[line.function_id()];
      frames.push_back({std::string(profile->text(function.name())), std::string(profile->text(function.system_name())),
                        std::string(profile->text(function.filename())), line.line(), function.start_line()});
    }
  }
  return known;
}

bool SymbolCache::Load(const std::string& build_id, FramesByPosition& frames) const {
  const FramesByPosition known = ReadAll(build_id);
  for (const auto& [position, ignored] : frames) {
    if (known.find(position) == known.end()) return false;
  }
  for (auto& [position, of_position] : frames) of_position = known.at(position);
  return true;
}

void SymbolCache::Store(const std::string& build_id, const FramesByPosition& frames) const {
  const std::string path = PathOf(build_id);
  if (path.empty()) return;
  FramesByPosition known = ReadAll(build_id);
  known.insert(frames.begin(), frames.end());

  pprof::Profile message;
  message.add_string_table("");
  FrameTables tables(message);
  absl::flat_hash_map<uint64_t, uint64_t> mappings;
  for (const auto& [position, of_position] : known) {
    const auto [mapping, new_mapping] = mappings.try_emplace(position.second, mappings.size() + 1);
    if (new_mapping) {
      pprof::Mapping* added = message.add_mapping();
      added->set_id(mapping->second);
      added->set_file_offset(position.second);
      added->set_build_id(tables.Text(build_id));
    }
    pprof::Location* location = message.add_location();
    location->set_id(static_cast<uint64_t>(message.location_size()));
    location->set_mapping_id(mapping->second);
    location->set_address(position.first);
    tables.AddLines(of_position, *location);
  }
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const absl::StatusOr<std::string> bytes = hbmprof::internal::Gzip(message.SerializeAsString());
  if (bytes.ok()) hbmprof::internal::WriteFileAtomically(path, *bytes).IgnoreError();
}

}  // namespace hbmprof::tool
