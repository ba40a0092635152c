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

// RunTool with --json, its output parsed, with all rows unless the arguments have -n; null if it failed.
nlohmann::json ToolJson(std::vector<std::string> arguments);

// Returns what in `value` is not as the JSON Schema says; "" if nothing is. Knows the words that docs/schema uses.
// `file`: the whole schema, if `schema` is a part of it.
std::string SchemaProblem(const nlohmann::json& schema, const nlohmann::json& value,
                          const std::string& where = "answer", const nlohmann::json* file = nullptr);

// Returns what `hbmprof explain` says on the trust in this source, which must be readable.
nlohmann::json TrustIn(const std::string& source);

// Returns an empty folder that only this test uses.
std::string ScratchDir();

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_TOOL_H_
