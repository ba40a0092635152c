// What the injected library writes: the options that `run` and `attach` have in common, and the variables for them.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_OUTPUT_OPTIONS_H_
#define HBMPROF_SRC_TOOL_COMMANDS_OUTPUT_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "src/tool/commands/injection.h"

namespace hbmprof::tool {

inline constexpr char kProfileSuffix[] = ".pb.gz";
inline constexpr char kOutputVariable[] = "HBMPROF_CUDA_OUTPUT";

struct OutputOptions {
  std::string output = "hbmprof-profiles";
  std::string interval;  // "60s"; empty: no profiles at intervals
  std::string library;
  std::string record;  // the file of the recordings; "true": in the folder; empty: none
};
void AddOutputOptions(CLI::App& arguments, OutputOptions& options);

// Returns the common start of the names of this run's profiles. It is unique even if runs in several containers, which
// can have the same process ids, share a folder.
std::string NewRunName();

// Returns kInvalidArgument if a value is wrong.
absl::Status CheckOutputOptions(const OutputOptions& options);
// Sets the variables for profiles and recordings in `folder`. REQUIRES: CheckOutputOptions(options).
void SetOutputVariables(const OutputOptions& options, const std::string& folder, const std::string& run,
                        Environment& environment);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_OUTPUT_OPTIONS_H_
