// See read_profiles.h.
#include "src/tool/source/read_profiles.h"

#include <optional>
#include <utility>

#include "src/tool/source/profile_source.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/progress.h"
#include "src/tool/util/status_macros.h"

namespace hbmprof::tool {

absl::StatusOr<RawProfile> ReadProfile(const std::string& source, std::vector<std::string>* gaps) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadSource(source, gaps));
  CountInput(bytes.size());
  return ParseProfile(bytes, source);
}

absl::StatusOr<ProfileSet> ReadProfiles(const std::vector<std::string>& sources) {
  Progress progress(sources.size(), "files read");
  size_t i = 0;
  return ProfileSet::ReadEach([&]() -> absl::StatusOr<std::optional<ProfileSet::Named>> {
    if (i == sources.size()) return std::nullopt;
    const std::string& source = sources[i++];
    absl::StatusOr<RawProfile> raw = ReadProfile(source);
    progress.Advance(1);
    if (!raw.ok()) return raw.status();
    return ProfileSet::Named{source, *std::move(raw)};
  });
}

absl::StatusOr<ProfileSet> ReadView(const std::string& command, const std::vector<std::string>& sources,
                                    const ViewOptions& options, bool* trimmed) {
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(sources));
  RETURN_IF_ERROR(ApplyView(command, options, profiles, trimmed));
  return profiles;
}

absl::StatusOr<SumsQuery> ReadQuery(const std::string& command, const std::vector<std::string>& sources,
                                    const SumsOptions& options, size_t first) {
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(sources));
  KeepLastOfEachProcess(command, first, profiles);
  return MakeQuery(command, std::move(profiles), options);
}

}  // namespace hbmprof::tool
