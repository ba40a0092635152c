// A profile in which the births of buffers are labels, for pprof and other viewers.
#include "src/tool/convert/format.h"
#include "src/tool/profile/ages.h"

namespace hbmprof::tool {

const Format kBirthsFormat = [] {
  Format format = {"births"};
  format.rewrite = [](pprof::Profile& profile) { return LabelBirths(0, &profile); };
  return format;
}();

}  // namespace hbmprof::tool
