#include "src/api/output/output_path.h"

#include <sys/stat.h>
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

// Returns the length of the ending ".pb.gz"; 0 if the path has none.
size_t EndingBytes(std::string_view path) {
  constexpr std::string_view kEnding = ".pb.gz";
  const bool has_ending = path.size() > kEnding.size() && path.substr(path.size() - kEnding.size()) == kEnding;
  return has_ending ? kEnding.size() : 0;
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

std::string BeforeEnding(std::string_view path, std::string_view text) {
  const std::string_view stem = path.substr(0, path.size() - EndingBytes(path));
  return std::string(stem).append(text).append(path.substr(stem.size()));
}

std::string RecordingBeside(std::string_view profile) {
  return std::string(profile.substr(0, profile.size() - EndingBytes(profile))).append(".hbmrec");
}

absl::Status WithFreeName(const OutputPattern& pattern, bool must_be_new,
                          const std::function<absl::Status(const std::string& path, int attempt)>& use) {
  constexpr int kMostNames = 1 << 20;
  absl::Status status;
  for (int i = 0; i < kMostNames; ++i) {
    std::string path = pattern.Path(pattern.has_number() ? NextOutputNumber() : 0);
    if (i > 0 && !pattern.has_number()) path = BeforeEnding(path, "." + std::to_string(i));
    status = use(path, i);
    if (!must_be_new || !absl::IsAlreadyExists(status)) break;
  }
  return status;
}

absl::Status CheckIsNew(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  return absl::AlreadyExistsError(path + " exists already");
}

}  // namespace hbmprof::internal
