// Running the command `hbmprof` as a user does.
#ifndef HBMPROF_TESTS_TOOL_TOOL_H_
#define HBMPROF_TESTS_TOOL_TOOL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/pprof_tool.h"

namespace hbmprof_test {

// Where the command is: what HBMPROF_TOOL names, else the one of this build.
std::string ToolPath();

CommandResult RunTool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// RunTool with --json, its output parsed; null if it failed.
nlohmann::json ToolJson(std::vector<std::string> arguments);

// A folder of this test's own, empty.
std::string ScratchDir();

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_TOOL_H_
