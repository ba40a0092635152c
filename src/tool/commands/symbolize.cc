// `hbmprof symbolize`: adds functions, files, lines and inlined calls to a profile's addresses.
#include <filesystem>
#include <thread>

#include "src/export/gzip.h"
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/symbols/profile_symbols.h"
#include "src/tool/util/files.h"
#include "src/tool/util/threads.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

struct SymbolizeOptions {
  std::string source;
  std::string output;
  std::vector<std::string> debug_dirs;
  bool json = false;
};

RowFields<ProfileModule*> ModuleFields() {
  using Row = const ProfileModule*;
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return {
      {"found", 'r', [](Row module) { return Cat(module->found(), "/", module->locations.size()); }, "found_count",
       [](Row module) { return module->found(); }},
      {"", 'l', nullptr, "address_count", [](Row module) { return module->locations.size(); }},
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

absl::StatusOr<int> RunSymbolize(SymbolizeOptions& options) {
  RETURN_IF_ERROR(CheckMemoryVariable());
  RETURN_IF_ERROR(CheckFileJson(options.output, options.json));
  if (options.output.empty()) options.output = NewFileFor(options.source, ".symbolized.pb.gz");
  // A profile may be replaced by itself, but not a recording by a profile.
  if (const std::string file = PartsOf(options.source).file; IsRecordingFile(file)) {
    RETURN_IF_ERROR(CheckIsNoInput(options.output, {file}));
  }
  for (const std::string& dir : options.debug_dirs) {
    if (!fs::is_directory(dir)) return NotFound("--debug-dir ", dir, ": no such folder");
  }
  ASSIGN_OR_RETURN(RawProfile profile, ReadProfile(options.source));
  auto modules = ModulesOf(profile);
  // The largest module comes first, so that it is not the last one to finish.
  std::vector<ProfileModule*> work;
  for (auto& [key, module] : modules) work.push_back(&module);
  absl::c_sort(
      work, [](const ProfileModule* a, const ProfileModule* b) { return a->locations.size() > b->locations.size(); });
  const DebugFiles debug_files(options.debug_dirs);
  RunOnThreads(work.size(), std::max(1u, std::thread::hardware_concurrency()),
               [&](size_t i) { FindFrames(debug_files, profile.message(), *work[i]); });
  WriteFrames(work, profile.message());
  ASSIGN_OR_RETURN(const std::string bytes, hbmprof::internal::Gzip(profile.message().SerializeAsString()));
  RETURN_IF_ERROR(WriteOutput(options.output, bytes));
  Answer answer(options.json);
  answer.json.update({{"source", options.source}, {"file", options.output}, {"problems", debug_files.problems()}});
  answer.Add("modules", work, ModuleFields(), 0);
  answer.text += Visible(options.output) + "\n";
  if (!IsStandardOutput(options.output)) answer.Print();
  for (const std::string& problem : debug_files.problems()) PrintError("symbolize", problem);
  return kSuccess;
}

}  // namespace

Command AddSymbolizeCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("symbolize", "Add functions, lines and inlined calls, from the binaries' debug information");
  auto options = std::make_shared<SymbolizeOptions>();
  arguments->add_option("SOURCE", options->source, "A profile")->required();
  arguments->add_option("-o,--output", options->output,
                        "The output file; - is standard output. Default: a new file in this folder");
  arguments
      ->add_option("--debug-dir", options->debug_dirs,
                   "Folder with unstripped files, by build id or in any layout; can be repeated")
      ->allow_extra_args(false);
  arguments->add_flag("--json", options->json, "Print JSON: the file that was written, and what was found");
  return {arguments, [options] { return RunSymbolize(*options); }};
}

}  // namespace hbmprof::tool
