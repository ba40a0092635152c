// Reads the profiles that a command line names (profile_source.h).
#ifndef HBMPROF_SRC_TOOL_SOURCE_READ_PROFILES_H_
#define HBMPROF_SRC_TOOL_SOURCE_READ_PROFILES_H_

#include "src/tool/profile/profile.h"
#include "src/tool/profile/profile_reader.h"
#include "src/tool/profile/view.h"
#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {

// Reads the profile of `source`. Its size counts for the memory limit. `gaps`: as for ReadSource. Errors: those of
// ReadSource and ParseProfile.
absl::StatusOr<RawProfile> ReadProfile(const std::string& source, std::vector<std::string>* gaps = nullptr);

// Reads the profiles and combines them; `change` is called with each of them before, if it is not null. Shows progress
// on stderr if that is a terminal. Errors: those of ReadProfile, of `change`, and of ProfileSet::ReadEach.
absl::StatusOr<ProfileSet> ReadProfiles(const std::vector<std::string>& sources,
                                        const std::function<absl::Status(pprof::Profile&)>& change = nullptr);

// Reads the profiles for the subcommand `command`, of those from `first` on keeps the last of each process, and applies
// the options. If `older` is set or --by has kBirthLabel, samples have this label. Errors: those of ReadProfiles,
// LabelBirths and MakeQuery.
absl::StatusOr<SumsQuery> ReadQuery(const std::string& command, const std::vector<std::string>& sources,
                                    const SumsOptions& options, size_t first = 0);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_READ_PROFILES_H_
