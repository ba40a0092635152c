// The `hbmprof` command.
#include "src/tool/commands/command_line.h"

int main(int argc, char** argv) { return hbmprof::tool::RunCommandLine(argc, argv); }
