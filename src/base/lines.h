// ForEachLine: the lines of a text. Used instead of the streams of the C++ library, of which the injected libraries
// would then contain a copy of 0.3 MB.
#ifndef HBMPROF_SRC_BASE_LINES_H_
#define HBMPROF_SRC_BASE_LINES_H_

#include <algorithm>
#include <cstddef>
#include <string>

namespace hbmprof::internal {

// Calls `function` with each line of `text`, a std::string without the line's end. Throws what `function` throws, and
// std::bad_alloc.
template <typename Function>
void ForEachLine(const std::string& text, Function function) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    function(text.substr(at, end - at));
    at = end + 1;
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LINES_H_
