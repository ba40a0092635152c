// Running the command `hbmprof` as a user does.
#ifndef HBMPROF_TESTS_TOOL_TOOL_H_
#define HBMPROF_TESTS_TOOL_TOOL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/pprof_tool.h"

namespace hbmprof_test {

// Returns the path of the command: the value of HBMPROF_TOOL, else the command of this build.
std::string ToolPath();

CommandResult RunTool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// RunTool with --json, its output parsed; null if it failed.
nlohmann::json ToolJson(std::vector<std::string> arguments);

// Returns an empty folder that only this test uses.
std::string ScratchDir();

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_TOOL_H_
