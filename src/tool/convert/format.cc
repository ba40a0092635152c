// See format.h.
#include "src/tool/convert/format.h"

#include <algorithm>

namespace hbmprof::tool {

const std::vector<const Format*>& Formats() {
#define HBMPROF_FORMAT(name) &k##name##Format,
  static const std::vector<const Format*> formats = {
#include "src/tool/convert/formats.inc"
  };
#undef HBMPROF_FORMAT
  return formats;
}

const Format* FormatNamed(const std::string& name) {
  const std::vector<const Format*>& formats = Formats();
  const auto found =
      std::find_if(formats.begin(), formats.end(), [&name](const Format* format) { return name == format->name; });
  return found == formats.end() ? nullptr : *found;
}

}  // namespace hbmprof::tool
