#include "src/api/output/output_path.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace hbmprof::internal {
namespace {

// Calls text(byte) for each byte that is copied, and field(letter) for each "%p" and "%n".
template <typename Text, typename Field>
void Parse(std::string_view pattern, const Text& text, const Field& field) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char following = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (following == 'p' || following == 'n') {
      field(following);
      ++i;
    } else {
      text(pattern[i]);
      if (following == '%') ++i;
    }
  }
}

}  // namespace

OutputPattern::OutputPattern(std::string_view pattern) : pattern_(pattern) {
  Parse(
      pattern, [](char) {}, [this](char letter) { (letter == 'p' ? has_process_ : has_number_) = true; });
}

std::string OutputPattern::Path(int number) const {
  std::string path;
  Parse(
      pattern_, [&path](char byte) { path += byte; },
      [&](char letter) { path += std::to_string(letter == 'p' ? getpid() : number); });
  return path;
}

int NextOutputNumber() {
  static std::atomic<int> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string WithNumber(std::string_view path, int number) {
  constexpr std::string_view kSuffix = ".pb.gz";
  const bool has_suffix = path.size() > kSuffix.size() && path.substr(path.size() - kSuffix.size()) == kSuffix;
  if (has_suffix) path.remove_suffix(kSuffix.size());
  return std::string(path).append(".").append(std::to_string(number)).append(has_suffix ? kSuffix : "");
}

}  // namespace hbmprof::internal
