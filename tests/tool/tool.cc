// See tool.h.
#include "tests/tool/tool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace hbmprof_test {

std::string ToolPath() {
  const char* named = std::getenv("HBMPROF_TOOL");
  return named == nullptr || *named == '\0' ? HBMPROF_BUILT_TOOL : named;
}

CommandResult RunTool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> argv = {ToolPath()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunCommand(argv, environment);
}

nlohmann::json ToolJson(std::vector<std::string> arguments) {
  const bool has_rows = std::find(arguments.begin(), arguments.end(), "-n") != arguments.end();
  const bool takes_rows = arguments[0] == "top" || arguments[0] == "diff" || arguments[0] == "leaks";
  if (takes_rows && !has_rows) arguments.insert(arguments.end(), {"-n", "0"});
  arguments.push_back("--json");
  const CommandResult result = RunTool(arguments);
  if (result.err.empty() && result.exit_code <= 1) return nlohmann::json::parse(result.out, nullptr, false);
  ADD_FAILURE() << "exit code " << result.exit_code << ": " << result.err;
  return nullptr;
}

nlohmann::json TrustIn(const std::string& source) {
  const CommandResult result = RunTool({"explain", "--json", source});
  const nlohmann::json answer = nlohmann::json::parse(result.out, nullptr, false);
  if (answer.is_object()) return answer["sources"][0]["trust"];
  ADD_FAILURE() << source << ": exit code " << result.exit_code << ": " << result.err;
  return nullptr;
}

std::string SchemaProblem(const nlohmann::json& schema, const nlohmann::json& value, const std::string& where,
                          const nlohmann::json* file) {
  using nlohmann::json;
  if (file == nullptr) file = &schema;
  if (schema.contains("$ref")) {
    const std::string reference = schema["$ref"];
    if (reference[0] != '#') return where + " needs another file, " + reference;
    return SchemaProblem(file->at(json::json_pointer(reference.substr(1))), value, where, file);
  }
  const auto is_type = [&value](const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    return type == "null" && value.is_null();
  };
  if (schema.contains("enum")) {
    const json& values = schema["enum"];
    if (std::find(values.begin(), values.end(), value) == values.end()) return where + " is " + value.dump();
  }
  if (schema.contains("type")) {
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), is_type)) return where + " is " + value.dump();
  }
  for (const json& name : value.is_object() ? schema.value("required", json::array()) : json::array()) {
    if (!value.contains(name.get<std::string>())) return where + " has no " + name.get<std::string>();
  }
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      const bool is_known = schema.contains("properties") && schema["properties"].contains(name);
      const json of_member = is_known ? schema["properties"][name] : schema.value("additionalProperties", json(true));
      if (of_member == false) return where + " has the field " + name;
      if (!of_member.is_object()) continue;
      if (std::string problem = SchemaProblem(of_member, member, where + "." + name, file); !problem.empty())
        return problem;
    }
  }
  for (size_t i = 0; value.is_array() && schema.contains("items") && i < value.size(); ++i) {
    const std::string problem = SchemaProblem(schema["items"], value[i], where + "[" + std::to_string(i) + "]", file);
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string ScratchDir() {
  // All tests of a process use one folder, which is removed when the process ends.
  static const struct Root {
    std::filesystem::path path =
        std::filesystem::path(testing::TempDir()) / ("hbmprof_tool_" + std::to_string(getpid()));
    ~Root() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } root;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path dir = root.path / test.test_suite_name() / test.name();
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir.string();
}

}  // namespace hbmprof_test
