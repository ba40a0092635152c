// See tool.h.
#include "tests/tool/tool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

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
  arguments.push_back("--json");
  const CommandResult result = RunTool(arguments);
  if (result.err.empty() && result.exit_code <= 1) return nlohmann::json::parse(result.out, nullptr, false);
  ADD_FAILURE() << "exit code " << result.exit_code << ": " << result.err;
  return nullptr;
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
