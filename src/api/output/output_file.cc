#include "src/api/output/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "src/base/message.h"

namespace hbmprof::internal {
namespace {

// The number of names that are tried for a new file.
constexpr int kMostNames = 1 << 20;

// The lowest number of the descriptor that is kept open. It is above the numbers that a program may expect for its own
// descriptors.
constexpr int kEarlyDescriptor = 500;

bool IsWritable(const OutputPattern& pattern) {
  const std::string path = pattern.Path(0);
  const size_t slash = path.rfind('/');
  return access(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), W_OK) == 0;
}

}  // namespace

absl::Status WriteToPattern(std::string_view pattern, mode_t mode, std::string_view bytes, std::string* path) {
  const OutputPattern parsed(pattern);
  FileRules rules;
  rules.mode.bits = mode;
  rules.must_be_new = parsed.has_number();
  absl::Status status;
  for (int i = 0; i < kMostNames; ++i) {
    const std::string name = parsed.Path(parsed.has_number() ? NextOutputNumber() : 0);
    if (path != nullptr) *path = name;
    status = WriteFileAtomically(name, bytes, rules);
    if (status.code() != absl::StatusCode::kAlreadyExists) break;
  }
  return status;
}

OutputFile::OutputFile(std::string_view pattern, mode_t mode)
    : pattern_(pattern),
      mode_(mode),
      process_(getpid()),
      at_start_(pattern_.has_process() || pattern_.has_number() ? FileIdentity() : IdentityOf(pattern_.Path(0))),
      was_writable_(IsWritable(pattern_)) {}

OutputFile::OutputFile(const OutputFile& parent, pid_t process)
    : pattern_(parent.pattern_),
      mode_(parent.mode_),
      process_(process),
      at_start_(parent.at_start_),
      was_writable_(parent.was_writable_) {}

OutputFile* OutputFile::NewForChild() const { return new OutputFile(*this, getpid()); }

absl::Status OutputFile::OpenEarly() {
  FileMutexLock hold(mutex_);
  if (const absl::Status status = WriteFile("", &early_); !status.ok()) return status;
  if (const int high = fcntl(early_.get(), F_DUPFD_CLOEXEC, kEarlyDescriptor); high >= 0) early_.Reset(high);
  return absl::OkStatus();
}

absl::Status OutputFile::Write(std::string_view bytes) {
  FileMutexLock hold(mutex_);
  return has_last_ ? absl::OkStatus() : WriteFile(bytes, nullptr);
}

absl::Status OutputFile::WriteLast(std::string_view bytes) {
  FileMutexLock hold(mutex_);
  if (is_early()) {
    if (has_last_) return absl::OkStatus();
    const absl::Status status = WriteInPlace(early_.get(), own_, own_path_, bytes);
    has_last_ = has_last_ || status.ok();
    if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  }
  const absl::Status status = WriteFile(bytes, nullptr);
  has_last_ = has_last_ || status.ok();
  return status;
}

absl::Status OutputFile::WriteFile(std::string_view bytes, FileDescriptor* keep_open) {
  FileRules rules;
  rules.mode.bits = mode_;
  FileIdentity written;
  rules.written = &written;
  rules.keep_open = keep_open;
  absl::Status status;
  for (int i = 0; i < kMostNames; ++i) {
    std::string path = pattern_.Path(pattern_.has_number() ? NextOutputNumber() : 0);
    if (i > 0 && !pattern_.has_number()) path = WithNumber(path, i);
    rules.only_over.reset();
    rules.must_be_new = false;
    if (path == own_path_) {
      rules.only_over = own_;
    } else if (i == 0 && !pattern_.has_process() && !pattern_.has_number()) {
      rules.only_over = at_start_;
    } else {
      rules.must_be_new = true;
    }
    status = WriteFileAtomically(path, bytes, rules);
    if (status.code() == absl::StatusCode::kAlreadyExists) continue;
    if (!status.ok()) return status;
    if (i > 0 && !pattern_.has_number() && path != own_path_) {
      PrintMessage("hbmprof: ", pattern_.Path(0),
                   " is not replaced, because this process did not write it; the profile is in ", path);
    }
    own_path_ = path;
    own_ = written;
    break;
  }
  return status;
}

const char* OutputFile::Advice(const absl::Status& status) const {
  if (is_early() || !was_writable_) return "";
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return " (the directory was writable when the program started: set HBMPROF_OUTPUT_OPEN=early to open the file at "
             "that time)";
    default:
      return "";
  }
}

}  // namespace hbmprof::internal
