// `hbmprof symbolize`: adds functions, files, lines and inlined calls to a profile's addresses.
#include <climits>
#include <filesystem>
#include <thread>

#include "src/export/gzip.h"
#include "src/tool/commands/command.h"
#include "src/tool/profile/profile.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/symbols/debug_files.h"
#include "src/tool/symbols/dwarf_symbolizer.h"
#include "src/tool/symbols/rewrite.h"
#include "src/tool/util/files.h"
#include "src/tool/util/listing.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/threads.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

struct SymbolizeOptions {
  std::vector<std::string> files;
  std::string output;
  std::vector<std::string> debug_dirs;
  bool json = false;
};

// A position in a module's file: its offset, and the offset at which the mapping that covers it starts.
using CodePosition = std::pair<uint64_t, uint64_t>;

// A module of the profiles: the wanted positions in it, and the frames found for them.
struct Module {
  std::string path;
  std::string build_id;
  std::map<CodePosition, std::vector<SourceFrame>> frames;
  std::string file;     // the file with the symbols; "" if none was found
  std::string problem;  // why no file was found
  bool has_dwarf = false;

  // Returns the number of positions with frames.
  int64_t found() const {
    return absl::c_count_if(frames, [](const auto& entry) { return !entry.second.empty(); });
  }
};
// By build id, or by path if they have none.
using Modules = std::map<std::pair<std::string, std::string>, Module>;

// Returns whether `path` can be a file with code. Special mappings such as [vdso] are not files.
bool IsFileOfCode(std::string_view path) {
  return !path.empty() && path[0] != '[' && path.find("linux-vdso") == std::string::npos &&
         path.compare(0, 2, "//") != 0 && path.compare(0, 6, "/memfd") != 0 && path.compare(0, 5, "/dev/") != 0;
}

CodePosition PositionOf(const pprof::Location& location, const pprof::Mapping& mapping) {
  return {location.address() - mapping.memory_start() + mapping.file_offset(), mapping.file_offset()};
}

// Opens the module's file: one with the right build id, preferably with DWARF. Returns null if there is none.
std::unique_ptr<DwarfSymbolizer> OpenFile(const DebugFiles& debug_files, Module& module) {
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

void SymbolizeModule(const DebugFiles& debug_files, Module& module) {
  const std::unique_ptr<DwarfSymbolizer> symbolizer = OpenFile(debug_files, module);
  if (symbolizer == nullptr) return;
  std::vector<uint64_t> addresses;
  for (const auto& [position, frames] : module.frames) {
    addresses.push_back(symbolizer->AddressOf(position.first, position.second));
  }
  std::vector<std::vector<SourceFrame>> found = symbolizer->Symbolize(addresses);
  size_t i = 0;
  for (auto& [position, frames] : module.frames) frames = std::move(found[i++]);
}

// Returns the output file of each profile. Errors: kInvalidArgument if there are several profiles and the output is not
// a folder, if two profiles would be written to one file, or if a recording would be replaced.
absl::StatusOr<std::vector<std::string>> OutputFiles(SymbolizeOptions& options) {
  const bool into_folder = options.files.size() > 1;
  if (options.output.empty() && !into_folder) options.output = NewFileFor(options.files[0], ".symbolized.pb.gz");
  if (into_folder && !fs::is_directory(options.output)) {
    return InvalidArgument("-o ", options.output.empty() ? "DIR" : options.output,
                           ": must be a folder that exists, because there are several profiles");
  }
  std::vector<std::string> recordings = FilesOf(options.files);
  EraseIf(recordings, [](const std::string& file) { return !IsRecordingFile(file); });
  std::vector<std::string> outputs;
  absl::flat_hash_map<std::string, std::string> inputs;  // by output
  for (const std::string& file : options.files) {
    outputs.push_back(into_folder ? (fs::path(options.output) / fs::path(file).filename()).string() : options.output);
    const auto [entry, is_new] = inputs.try_emplace(outputs.back(), file);
    if (!is_new) {
      return InvalidArgument("-o ", options.output, ": ", entry->second, " and ", file, " would both be written to ",
                             outputs.back(), "; symbolize them one by one");
    }
    RETURN_IF_ERROR(CheckIsNoInput(outputs.back(), recordings));
  }
  return outputs;
}

// A profile, and its modules by the ids of their mappings; null for those without code in a file.
struct Input {
  RawProfile profile;
  absl::flat_hash_map<uint64_t, Module*> modules;
};

// Returns the profile with its modules. Adds them, and the positions in them that need frames, to `modules`.
Input WithModules(RawProfile profile, Modules& modules) {
  absl::flat_hash_map<uint64_t, const pprof::Mapping*> mappings;
  for (const pprof::Mapping& mapping : profile.message().mapping()) mappings[mapping.id()] = &mapping;
  Input input = {std::move(profile), {}};
  for (const pprof::Location& location : input.profile.message().location()) {
    const auto mapping = mappings.find(location.mapping_id());
    if (mapping == mappings.end() || location.address() == 0) continue;
    const auto [module, is_new] = input.modules.try_emplace(mapping->first, nullptr);
    const std::string_view path = input.profile.text(mapping->second->filename());
    const std::string_view build_id = input.profile.text(mapping->second->build_id());
    // The limit is needed because many mappings could use one long text.
    if (is_new && IsFileOfCode(path) && path.size() < PATH_MAX && build_id.size() < PATH_MAX) {
      module->second = &modules[{std::string(build_id), std::string(build_id.empty() ? path : "")}];
      module->second->path = path;
      module->second->build_id = build_id;
    }
    if (module->second != nullptr) module->second->frames[PositionOf(location, *mapping->second)];
  }
  return input;
}

// The fields of the answer on a module.
RowFields<Module*> ModuleFields() {
  using Row = const Module*;
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return {
      {"found", 'r', [](Row module) { return Cat(module->found(), "/", module->frames.size()); }, "found_count",
       [](Row module) { return module->found(); }},
      {"", 'l', nullptr, "address_count", [](Row module) { return module->frames.size(); }},
      {"module", 'l', [](Row module) { return fs::path(module->path).filename().string(); }, "module",
       [](Row module) { return module->path; }},
      {"", 'l', nullptr, "build_id", [text](Row module) { return text(module->build_id); }},
      {"from", 'l',
       [](Row module) {
         return module->file.empty() ? "NOT FOUND: " + module->problem
                : module->has_dwarf  ? module->file
                                     : module->file + " (no debug information: names only)";
       },
       "from", [text](Row module) { return text(module->file); }},
      {"", 'l', nullptr, "has_lines", [](Row module) { return module->has_dwarf; }},
      {"", 'l', nullptr, "problem", [text](Row module) { return text(module->file.empty() ? module->problem : ""); }}};
}

// Writes the frames that were found into the profile.
void Rewrite(Input& input) {
  const auto frames_of = [&input](const pprof::Location& location,
                                  const pprof::Mapping& mapping) -> const std::vector<SourceFrame>* {
    const auto found = input.modules.find(mapping.id());
    const Module* const module = found == input.modules.end() ? nullptr : found->second;
    // A symbol table has no more information than the names in the profile, so these are kept.
    if (module == nullptr || (!module->has_dwarf && location.line_size() > 0)) return nullptr;
    const auto frames = module->frames.find(PositionOf(location, mapping));
    return frames == module->frames.end() ? nullptr : &frames->second;
  };
  WriteFrames(frames_of, input.profile);
}

absl::StatusOr<int> RunSymbolize(SymbolizeOptions& options) {
  RETURN_IF_ERROR(CheckMemoryVariable());
  if (options.json && options.output == "-") {
    return InvalidArgument("-o -: --json writes its answer there; name a file");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> outputs, OutputFiles(options));
  for (const std::string& dir : options.debug_dirs) {
    if (!fs::is_directory(dir)) return NotFound("--debug-dir ", dir, ": no such folder");
  }
  std::vector<Input> inputs;
  Modules modules;
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(RawProfile profile, ReadProfile(file));
    inputs.push_back(WithModules(std::move(profile), modules));
  }
  // The largest module comes first, so that it is not the last one to finish.
  std::vector<Module*> work;
  for (auto& [key, module] : modules) work.push_back(&module);
  absl::c_sort(work, [](const Module* a, const Module* b) { return a->frames.size() > b->frames.size(); });
  const DebugFiles debug_files(options.debug_dirs);
  RunOnThreads(work.size(), std::max(1u, std::thread::hardware_concurrency()),
               [&](size_t i) { SymbolizeModule(debug_files, *work[i]); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    Rewrite(inputs[i]);
    ASSIGN_OR_RETURN(const std::string bytes, hbmprof::internal::Gzip(inputs[i].profile.message().SerializeAsString()));
    RETURN_IF_ERROR(WriteOutput(outputs[i], bytes));
  }
  if (options.json) {
    Json json = {{"version", kJsonVersion}, {"files", options.files}, {"written", outputs}};
    AddRows("modules", work, ModuleFields(), 0, json);
    json["problems"] = debug_files.problems();
    Print(ToText(json));
  } else if (!IsStandardOutput(outputs.front())) {
    PrintVisible(TableOf(work, ModuleFields(), 0));
    for (const std::string& output : outputs) Print(Visible(output) + "\n");
  }
  for (const std::string& problem : debug_files.problems()) PrintError("symbolize", problem);
  return kSuccess;
}

}  // namespace

Command AddSymbolizeCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("symbolize", "Add functions, lines and inlined calls, from the binaries' debug information");
  auto options = std::make_shared<SymbolizeOptions>();
  arguments->add_option("SOURCE", options->files, "Profiles; several are symbolized together")->required();
  arguments->add_option("-o,--output", options->output,
                        "The output file; - is standard output; a folder for several profiles. Default: a new file");
  arguments
      ->add_option("--debug-dir", options->debug_dirs,
                   "Folder with unstripped files, by build id or in any layout; can be repeated")
      ->allow_extra_args(false);
  arguments->add_flag("--json", options->json, "Print JSON: the files that were written, and what was found");
  AddProcessOptions(*arguments);
  return {arguments, [options] { return RunSymbolize(*options); }};
}

}  // namespace hbmprof::tool
