// See read_profiles.h.
#include "src/tool/source/read_profiles.h"

#include <cmath>

#include "src/tool/source/profile_source.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/progress.h"

namespace hbmprof::tool {

absl::StatusOr<RawProfile> ReadProfile(const std::string& source, std::vector<std::string>* gaps) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadSource(source, gaps));
  CountInput(bytes.size());
  return ParseProfile(bytes, source);
}

absl::StatusOr<ProfileSet> ReadProfiles(const std::vector<std::string>& sources,
                                        const std::function<absl::Status(pprof::Profile&)>& change) {
  Progress progress(sources.size(), "files read");
  size_t i = 0;
  return ProfileSet::ReadEach([&]() -> absl::StatusOr<std::optional<ProfileSet::Named>> {
    if (i == sources.size()) return std::nullopt;
    const std::string& source = sources[i++];
    absl::StatusOr<RawProfile> raw = ReadProfile(source);
    progress.Advance(1);
    if (!raw.ok()) return raw.status();
    if (change) RETURN_IF_ERROR(In(source, change(raw->message())));
    return ProfileSet::Named{source, *std::move(raw)};
  });
}

absl::StatusOr<SumsQuery> ReadQuery(const std::string& command, const std::vector<std::string>& sources,
                                    const SumsOptions& options, size_t first) {
  std::optional<double> older;
  if (!options.older.empty()) {
    ASSIGN_OR_RETURN(older, SecondsOf("--older", options.older, 1, 1e9, "a time such as 10m, from 1s to 1e9s"));
  }
  std::function<absl::Status(pprof::Profile&)> label;
  if (options.NeedsAges()) {
    label = [&](pprof::Profile& profile) {
      const absl::Status status = LabelBirths(static_cast<int64_t>(std::ceil(older.value_or(0))), &profile);
      const auto& texts = profile.string_table();
      // `hbmprof convert` may have replaced the ages.
      const bool may_have_label = absl::c_linear_search(texts, kBirthLabel);
      return may_have_label && !older.has_value() ? absl::OkStatus() : status;
    };
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(sources, label));
  KeepLastOfEachProcess(command, first, profiles);
  if (!older.has_value()) return MakeQuery(command, std::move(profiles), options);
  profiles.FilterLabels(ProfileSet::Removed::kInTotal,
                        [&](uint32_t labels) { return !profiles.LabelText(labels, kBirthLabel).empty(); });
  SumsOptions live = options;
  if (live.type.empty()) live.type = "inuse_space";
  ASSIGN_OR_RETURN(SumsQuery query, MakeQuery(command, std::move(profiles), live));
  if (query.type_name.rfind("inuse_", 0) == 0) return query;
  return InvalidArgument("--older selects live buffers, not ", query.type_name,
                         "; --type can be inuse_space or inuse_objects");
}

}  // namespace hbmprof::tool
