#include "src/tool/symbols/rewrite.h"

#include <tuple>

namespace hbmprof::tool {
namespace {

// The functions of a profile, to which more are added, each once.
class Functions {
 public:
  explicit Functions(pprof::Profile& message) : message_(message), texts_(message) {
    for (const pprof::Function& function : message.function()) {
      numbers_[{function.name(), function.system_name(), function.filename(), function.start_line()}] = function.id();
      last_ = std::max(last_, function.id());
    }
  }
  uint64_t NumberOf(const SourceFrame& frame) {
    const int64_t name = texts_.Of(frame.name);
    const int64_t system_name = texts_.Of(frame.system_name);
    const int64_t file = texts_.Of(frame.file);
    const auto [entry, is_new] = numbers_.try_emplace({name, system_name, file, frame.start_line}, last_ + 1);
    if (is_new) {
      pprof::Function& function = *message_.add_function();
      function.set_id(++last_);
      function.set_name(name);
      function.set_system_name(system_name);
      function.set_filename(file);
      function.set_start_line(frame.start_line);
    }
    return entry->second;
  }

 private:
  pprof::Profile& message_;
  StringTable texts_;
  uint64_t last_ = 0;  // the greatest number
  absl::flat_hash_map<std::tuple<int64_t, int64_t, int64_t, int64_t>, uint64_t> numbers_;
};

}  // namespace

void WriteFrames(const FramesOf& frames_of, RawProfile& profile) {
  pprof::Profile& message = profile.message();
  Functions functions(message);
  absl::flat_hash_map<uint64_t, pprof::Mapping*> mappings;
  for (pprof::Mapping& mapping : *message.mutable_mapping()) mappings[mapping.id()] = &mapping;
  for (pprof::Location& location : *message.mutable_location()) {
    const auto found = mappings.find(location.mapping_id());
    if (found == mappings.end()) continue;
    pprof::Mapping& mapping = *found->second;
    const std::vector<SourceFrame>* const frames = frames_of(location, mapping);
    if (frames == nullptr || frames->empty()) continue;
    location.clear_line();
    mapping.set_has_functions(true);
    if (frames->size() > 1) mapping.set_has_inline_frames(true);
    for (const SourceFrame& frame : *frames) {
      pprof::Line& line = *location.add_line();
      line.set_function_id(functions.NumberOf(frame));
      line.set_line(frame.line);
      if (!frame.file.empty()) mapping.set_has_filenames(true);
      if (frame.line != 0) mapping.set_has_line_numbers(true);
    }
  }
}

}  // namespace hbmprof::tool
