// The entry of the command. It is apart from main(), so that it is compiled together with the subcommands.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_COMMAND_LINE_H_
#define HBMPROF_SRC_TOOL_COMMANDS_COMMAND_LINE_H_

namespace hbmprof::tool {

// Parses the arguments of the process, runs the subcommand that they name, and returns the exit status.
int RunCommandLine(int argc, char** argv);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_COMMAND_LINE_H_
