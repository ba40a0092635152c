#include "src/api/output/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

#include "src/base/message.h"

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

absl::Status WriteToPattern(std::string_view pattern, mode_t mode, bool must_be_new, std::string_view bytes,
                            std::string* path) {
  const OutputPattern parsed(pattern);
  FileRules rules;
  rules.mode.bits = mode;
  rules.must_be_new = must_be_new || parsed.has_number();
  return WithFreeName(parsed, parsed.has_number(), [&](const std::string& name, int /*attempt*/) {
    *path = name;
    return WriteFileAtomically(name, bytes, rules);
  });
}

OutputFile::OutputFile(std::string_view pattern, mode_t mode)
    : pattern_(pattern),
      mode_(mode),
      process_(getpid()),
      at_start_(pattern_.has_process() || pattern_.has_number() ? FileIdentity() : IdentityOf(pattern_.Path(0))) {}

OutputFile::OutputFile(const OutputFile& parent, pid_t process)
    : pattern_(parent.pattern_), mode_(parent.mode_), process_(process), at_start_(parent.at_start_) {}

OutputFile* OutputFile::NewForChild() const { return new OutputFile(*this, getpid()); }

absl::Status OutputFile::Write(std::string_view bytes, bool is_last, std::string* path) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const absl::Status status = has_last_ && !is_last ? absl::OkStatus() : WriteFile(bytes);
  has_last_ = has_last_ || (is_last && status.ok());
  *path = own_path_;
  return status;
}

absl::Status OutputFile::WriteFile(std::string_view bytes) {
  const bool has_number = pattern_.has_number();
  return WithFreeName(pattern_, /*must_be_new=*/true, [&](const std::string& path, int attempt) {
    FileRules rules;
    rules.mode.bits = mode_;
    FileIdentity written;
    rules.written = &written;
    if (path == own_path_) {
      rules.only_over = own_;
    } else if (attempt == 0 && !pattern_.has_process() && !has_number) {
      rules.only_over = at_start_;
    } else {
      rules.must_be_new = true;
    }
    const absl::Status status = WriteFileAtomically(path, bytes, rules);
    if (!status.ok()) return status;
    if (attempt > 0 && !has_number && path != own_path_) {
      PrintMessage("hbmprof: ", pattern_.Path(0),
                   " is not replaced, because this process did not write it; the profile is in ", path);
    }
    own_path_ = path;
    own_ = written;
    return status;
  });
}

}  // namespace hbmprof::internal
