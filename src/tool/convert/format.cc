// See format.h.
#include "src/tool/convert/format.h"

namespace hbmprof::tool {

const std::vector<const Format*>& Formats() {
#define HBMPROF_FORMAT(name) &k##name##Format,
  static const std::vector<const Format*> formats = {
#include "src/tool/convert/formats.inc"
  };
#undef HBMPROF_FORMAT
  return formats;
}

}  // namespace hbmprof::tool
