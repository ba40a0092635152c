// See rewrite.h.
#include "src/tool/symbols/rewrite.h"

#include "src/tool/profile/info.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// The comment that tells `hbmprof check` that the profile is already symbolized.
constexpr char kSymbolized[] = "symbolized";

void WriteComment(size_t modules, RawProfile& profile, FrameTables& tables) {
  pprof::Profile& message = profile.message();
  int with_lines = 0;
  for (const pprof::Location& location : message.location()) {
    with_lines += absl::c_any_of(location.line(), [](const pprof::Line& line) { return line.line() != 0; });
  }
  auto& comments = *message.mutable_comment();
  comments.erase(std::remove_if(comments.begin(), comments.end(),
                                [&](int64_t text) { return Comment(profile.text(text)).word == kSymbolized; }),
                 comments.end());
  message.add_comment(tables.Text(
      Cat(kSymbolized, " modules=", modules, " locations=", message.location_size(), " with_lines=", with_lines)));
}

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

}  // namespace

FrameTables::FrameTables(pprof::Profile& message) : message_(message) {
  for (int i = 0; i < message_.string_table_size(); ++i) texts_.try_emplace(message_.string_table(i), i);
}

int64_t FrameTables::Text(const std::string& text) {
  const auto [entry, is_new] = texts_.try_emplace(text, message_.string_table_size());
  if (is_new) message_.add_string_table(text);
  return entry->second;
}

uint64_t FrameTables::FunctionOf(int64_t name, int64_t system_name, int64_t file, int64_t start_line) {
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

void FrameTables::AddLines(const std::vector<SourceFrame>& frames, pprof::Location& location) {
  for (const SourceFrame& frame : frames) {
    pprof::Line& line = *location.add_line();
    // The order of the strings in the table is that of these statements.
    const int64_t name = Text(frame.name);
    const int64_t system_name = Text(frame.system_name);
    line.set_function_id(FunctionOf(name, system_name, Text(frame.file), frame.start_line));
    line.set_line(frame.line);
  }
}

void WriteFrames(const FramesOf& frames_of, size_t modules, RawProfile& profile) {
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
  WriteComment(modules, profile, tables);
  DropUnusedStrings(message);
}

}  // namespace hbmprof::tool
