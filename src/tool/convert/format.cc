#include "src/tool/convert/format.h"

#include "src/tool/profile/ages.h"

namespace hbmprof::tool {

const std::vector<const Format*>& Formats() {
  // A profile in which the births of buffers are labels, for pprof and other viewers.
  static const Format births = {"births", nullptr, false,
                                [](pprof::Profile& profile) { return LabelBirths(0, &profile); }};
  static const std::vector<const Format*> formats = {&kCsvFormat, &kNdjsonFormat, &kFoldedFormat,   &kSpeedscopeFormat,
                                                     &births,     &kXplaneFormat, &kPerfettoFormat, &kMemoryVizFormat};
  return formats;
}

}  // namespace hbmprof::tool
