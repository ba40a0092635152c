#include "src/api/output/output_file.h"

#include <unistd.h>

#include "src/base/message.h"

namespace hbmprof::internal {

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
