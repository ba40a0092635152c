#include "src/tool/symbols/rewrite.h"

#include <filesystem>
#include <tuple>

#include "src/base/atomic_file.h"
#include "src/export/gzip.h"
#include "src/tool/profile/info.h"
#include "src/tool/symbols/debug_files.h"
#include "src/tool/util/files.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// Adds functions to the table of a profile, each once.
class FrameTables {
 public:
  explicit FrameTables(pprof::Profile& message) : texts(message), message_(message) {}

  StringTable texts;
  // Returns the id of the function. Its strings are in the table.
  uint64_t FunctionOf(int64_t name, int64_t system_name, int64_t file, int64_t start_line) {
    const auto [entry, is_new] = functions_.try_emplace({name, system_name, file, start_line}, functions_.size() + 1);
    if (is_new) {
      pprof::Function& function = *message_.add_function();
      function.set_id(entry->second);
      function.set_name(name);
      function.set_system_name(system_name);
      function.set_filename(file);
      function.set_start_line(start_line);
    }
    return entry->second;
  }
  void AddLines(const std::vector<SourceFrame>& frames, pprof::Location& location) {
    for (const SourceFrame& frame : frames) {
      pprof::Line& line = *location.add_line();
      // The order of the strings in the table is that of these statements.
      const int64_t name = texts.Of(frame.name);
      const int64_t system_name = texts.Of(frame.system_name);
      line.set_function_id(FunctionOf(name, system_name, texts.Of(frame.file), frame.start_line));
      line.set_line(frame.line);
    }
  }

 private:
  pprof::Profile& message_;
  absl::flat_hash_map<std::tuple<int64_t, int64_t, int64_t, int64_t>, uint64_t> functions_;
};

void DropUnusedStrings(pprof::Profile& message) {
  google::protobuf::RepeatedPtrField<std::string> kept;
  kept.Add();
  std::vector<int64_t> new_index(static_cast<size_t>(message.string_table_size()), 0);
  const auto renew = [&](int64_t index) {
    int64_t& to = new_index[static_cast<size_t>(index)];
    if (to == 0 && index != 0) {
      to = kept.size();
      *kept.Add() = message.string_table(static_cast<int>(index));
    }
    return to;
  };
  const auto renew_type = [&](pprof::ValueType& type) {
    type.set_type(renew(type.type()));
    type.set_unit(renew(type.unit()));
  };
  for (pprof::ValueType& type : *message.mutable_sample_type()) renew_type(type);
  if (message.has_period_type()) renew_type(*message.mutable_period_type());
  for (pprof::Sample& sample : *message.mutable_sample()) {
    for (pprof::Label& label : *sample.mutable_label()) {
      label.set_key(renew(label.key()));
      label.set_str(renew(label.str()));
      label.set_num_unit(renew(label.num_unit()));
    }
  }
  for (pprof::Mapping& mapping : *message.mutable_mapping()) {
    mapping.set_filename(renew(mapping.filename()));
    mapping.set_build_id(renew(mapping.build_id()));
  }
  for (pprof::Function& function : *message.mutable_function()) {
    function.set_name(renew(function.name()));
    function.set_system_name(renew(function.system_name()));
    function.set_filename(renew(function.filename()));
  }
  for (int64_t& comment : *message.mutable_comment()) comment = renew(comment);
  message.set_drop_frames(renew(message.drop_frames()));
  message.set_keep_frames(renew(message.keep_frames()));
  message.set_default_sample_type(renew(message.default_sample_type()));
  message.set_doc_url(renew(message.doc_url()));
  message.mutable_string_table()->Swap(&kept);
}

// Adds the frames to the location, and notes in its mapping what they have.
void SetLines(const std::vector<SourceFrame>& frames, pprof::Mapping& mapping, pprof::Location& location,
              FrameTables& tables) {
  location.clear_line();
  tables.AddLines(frames, location);
  mapping.set_has_functions(true);
  if (frames.size() > 1) mapping.set_has_inline_frames(true);
  for (const SourceFrame& frame : frames) {
    if (!frame.file.empty()) mapping.set_has_filenames(true);
    if (frame.line != 0) mapping.set_has_line_numbers(true);
  }
}

// Returns the path of the file in the cache; "" if there is no cache, or if the text is no build id.
std::string CacheFile(const std::string& build_id) {
  const std::string folder = CacheFolder();
  // A profile can contain any text as a build id. Only hex is accepted, so it cannot be a path.
  if (folder.empty() || build_id.size() < 8 || !absl::c_all_of(build_id, absl::ascii_isxdigit)) return "";
  return Cat(folder, "/hbmprof/", build_id, ".symbols.pb.gz");
}

// Returns what the cache has; nothing if it cannot be read.
FramesByPosition ReadCache(const std::string& build_id) {
  FramesByPosition known;
  const std::string path = CacheFile(build_id);
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

}  // namespace

void WriteFrames(const FramesOf& frames_of, RawProfile& profile) {
  pprof::Profile& message = profile.message();
  FrameTables tables(message);
  absl::flat_hash_map<uint64_t, pprof::Mapping*> mappings;
  for (pprof::Mapping& mapping : *message.mutable_mapping()) mappings[mapping.id()] = &mapping;
  absl::flat_hash_map<uint64_t, const pprof::Function*> old_functions;
  const google::protobuf::RepeatedPtrField<pprof::Function> old = message.function();
  for (const pprof::Function& function : old) old_functions[function.id()] = &function;
  message.clear_function();
  for (pprof::Location& location : *message.mutable_location()) {
    const auto mapping = mappings.find(location.mapping_id());
    const std::vector<SourceFrame>* const frames =
        mapping == mappings.end() ? nullptr : frames_of(location, *mapping->second);
    if (frames != nullptr && !frames->empty()) {
      SetLines(*frames, *mapping->second, location, tables);
      continue;
    }
    for (pprof::Line& line : *location.mutable_line()) {
      const pprof::Function& function = *old_functions[line.function_id()];
      line.set_function_id(
          tables.FunctionOf(function.name(), function.system_name(), function.filename(), function.start_line()));
    }
  }
  DropUnusedStrings(message);
}

bool LoadFrames(const std::string& build_id, FramesByPosition& frames) {
  const FramesByPosition known = ReadCache(build_id);
  for (const auto& [position, ignored] : frames) {
    if (known.find(position) == known.end()) return false;
  }
  for (auto& [position, of_position] : frames) of_position = known.at(position);
  return true;
}

void StoreFrames(const std::string& build_id, const FramesByPosition& frames) {
  const std::string path = CacheFile(build_id);
  if (path.empty()) return;
  FramesByPosition known = ReadCache(build_id);
  known.insert(frames.begin(), frames.end());

  pprof::Profile message;
  FrameTables tables(message);
  absl::flat_hash_map<uint64_t, uint64_t> mappings;
  for (const auto& [position, of_position] : known) {
    const auto [mapping, new_mapping] = mappings.try_emplace(position.second, mappings.size() + 1);
    if (new_mapping) {
      pprof::Mapping* added = message.add_mapping();
      added->set_id(mapping->second);
      added->set_file_offset(position.second);
      added->set_build_id(tables.texts.Of(build_id));
    }
    pprof::Location* location = message.add_location();
    location->set_id(static_cast<uint64_t>(message.location_size()));
    location->set_mapping_id(mapping->second);
    location->set_address(position.first);
    tables.AddLines(of_position, *location);
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const absl::StatusOr<std::string> bytes = hbmprof::internal::Gzip(message.SerializeAsString());
  if (bytes.ok()) hbmprof::internal::WriteFileAtomically(path, *bytes).IgnoreError();
}

}  // namespace hbmprof::tool
