// `hbmprof check`: is this profile well formed and complete?
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "src/tool/command.h"
#include "src/tool/profile_reader.h"

namespace hbmprof::tool {

Command AddCheckCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("check", "Say whether profiles are well formed and complete");
  auto files = std::make_shared<std::vector<std::string>>();
  arguments->add_option("FILE", *files, "Profiles; - is standard input")->required();
  return {arguments, [files]() -> absl::StatusOr<int> {
            for (const std::string& file : *files) {
              const absl::StatusOr<RawProfile> profile = ReadProfile(file);
              if (!profile.ok()) return profile.status();
              std::printf("%s: well formed, %d samples\n", file.c_str(), profile->message().sample_size());
            }
            return kSuccess;
          }};
}

}  // namespace hbmprof::tool
