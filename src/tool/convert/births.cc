// A profile in which the births of buffers are labels, for pprof and other viewers.
#include <algorithm>

#include "src/tool/convert/format.h"
#include "src/tool/profile/ages.h"

namespace hbmprof::tool {
namespace {

absl::Status WriteBirths(pprof::Profile& profile) {
  const auto& samples = profile.sample();
  if (std::none_of(samples.begin(), samples.end(), [](const auto& sample) { return sample.has_ages(); })) {
    return absl::InvalidArgumentError(
        "has no ages of buffers; they are in profiles of this version or later that no other tool has rewritten");
  }
  LabelBirths(&profile);
  return absl::OkStatus();
}

}  // namespace

const Format kBirthsFormat = [] {
  Format format = {"births"};
  format.rewrite = &WriteBirths;
  return format;
}();

}  // namespace hbmprof::tool
