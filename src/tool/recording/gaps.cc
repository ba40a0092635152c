// See gaps.h.
#include "src/tool/recording/gaps.h"

#include "src/tool/util/text.h"

namespace hbmprof::tool {

std::vector<std::string> GapsOf(const internal::RecordingReader& recording) {
  std::vector<std::string> gaps;
  if (!recording.problem().empty()) {
    gaps.push_back(recording.problem());
  } else if (!recording.is_complete()) {
    gaps.emplace_back(
        "the recording is incomplete: the process still writes it, or ended before it closed the file; the last events "
        "may be missing");
  }
  if (!recording.lost().empty()) {
    int64_t count = 0;
    for (const internal::LostEvents& lost : recording.lost()) AddTo(count, lost.count);
    gaps.push_back(Cat("events are missing in ", recording.lost().size(), " intervals (",
                       count == 0 ? "number not known" : Cat(count), "): the values are not exact from there on"));
  }
  if (!recording.tables().live_is_complete) {
    gaps.emplace_back("the list of the buffers that were live at the start is incomplete");
  }
  return gaps;
}

void WarnOfGaps(const std::string& command, const std::string& path, const internal::RecordingReader& recording) {
  for (const std::string& gap : GapsOf(recording)) PrintError(command, Cat(path, ": ", gap));
}

}  // namespace hbmprof::tool
