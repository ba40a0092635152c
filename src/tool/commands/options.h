// Options that several subcommands have, on their command lines.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_OPTIONS_H_
#define HBMPROF_SRC_TOOL_COMMANDS_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "src/tool/profile/view.h"
#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {

// The last lines of the help of a command that has ViewOptions.
extern const char kFilterHelp[];
// The help of --own where it is the default.
inline constexpr char kOwnHelp[] = "Attribute samples to the first frame outside of known libraries (default)";

// The help of a SOURCE (profile_source.h).
inline constexpr char kSourceHelp[] = "A file, -, a process, a URL, or a moment of a recording: run.hbmrec@peak";

// The heading of the options of running processes.
inline constexpr char kProcessGroup[] = "Running processes";
// Adds the options of a subcommand that takes running processes. If they are hidden, kFilterHelp lists them.
void AddProcessOptions(CLI::App& arguments, bool is_hidden = false);

// These functions add the options to the command line of a subcommand. `options` must exist until it has run. They
// include those of AddProcessOptions.
CLI::Option* AddKnownOption(CLI::App& arguments, std::vector<std::string>& known);
void AddViewOptions(CLI::App& arguments, ViewOptions& options);
// All options except the files and --tree.
void AddSumsOptions(CLI::App& arguments, SumsOptions& options);
void AddTreeOption(CLI::App& arguments, SumsOptions& options);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_OPTIONS_H_
