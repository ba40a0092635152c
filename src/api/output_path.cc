#include "src/api/output_path.h"

#include <unistd.h>

#include <atomic>

namespace hbmprof::internal {

std::string ExpandOutputPath(std::string_view pattern) {
  static std::atomic<int> next{0};
  int number = -1;
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char following = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (following == 'p') {
      path += std::to_string(getpid());
    } else if (following == 'n') {
      if (number < 0) number = next.fetch_add(1, std::memory_order_relaxed);
      path += std::to_string(number);
    } else if (following == '%') {
      path += '%';
    } else {
      path += pattern[i];
      continue;
    }
    ++i;
  }
  return path;
}

}  // namespace hbmprof::internal
