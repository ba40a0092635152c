// Replacing a file atomically. Knows nothing of what is in it.
#include "src/base/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <system_error>

namespace hbmprof::internal {
namespace {

// A temporary name keeps this many bytes of the target's, so that it stays below NAME_MAX.
constexpr size_t kMaxBaseInTemporaryName = 180;

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status Failure(const std::string& path, const char* step, int error) {
  return absl::Status(CodeOf(error),
                      "cannot write " + path + ": " + step + ": " + std::generic_category().message(error));
}

template <typename Call>
auto RetryOnSignal(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// While it lives, a write beyond RLIMIT_FSIZE made by this thread fails with EFBIG and raises nothing.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    const timespec now = {};
    if (!was_pending_) RetryOnSignal([&] { return sigtimedwait(&signal_, nullptr, &now); });
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

// Returns 0 or an errno value, as does Sync.
int WriteAll(int fd, std::string_view bytes) {
  const FileSizeSignalBlocked guard;
  while (!bytes.empty()) {
    const ssize_t written = RetryOnSignal([&] { return write(fd, bytes.data(), bytes.size()); });
    if (written < 0) return errno;
    if (written == 0) return EIO;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// File systems that cannot sync have nothing better to offer; that is no error.
int Sync(int fd) {
  if (RetryOnSignal([&] { return fsync(fd); }) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? 0 : errno;
}

struct Target {
  std::string path;       // of the file itself, links followed
  std::string directory;  // ends in '/', or is empty for the working directory
  std::string base;

  std::string NewTemporaryPath() const {
    static std::atomic<uint32_t> counter{0};
    return directory + "." + base.substr(0, kMaxBaseInTemporaryName) + "." + std::to_string(getpid()) + "." +
           std::to_string(counter.fetch_add(1, std::memory_order_relaxed)) + ".tmp";
  }
};

enum class Result { kDone, kNotSupported };

// Replaces the target by way of a file that has no name until it is complete, so that not even a kill leaves anything.
// kNotSupported: nothing was done, and the file system or a missing /proc is why.
Result WriteUnnamed(const Target& target, std::string_view bytes, absl::Status* status) {
  const std::string directory = target.directory.empty() ? "." : target.directory;
  const FileDescriptor fd(
      RetryOnSignal([&] { return open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666); }));
  if (fd.get() < 0) return Result::kNotSupported;
  if (const int error = WriteAll(fd.get(), bytes)) {
    *status = Failure(target.path, "write", error);
    return Result::kDone;
  }
  if (const int error = Sync(fd.get())) {
    *status = Failure(target.path, "fsync", error);
    return Result::kDone;
  }
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  std::string temporary;
  int error;
  do {
    temporary = target.NewTemporaryPath();
    error = linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  } while (error == EEXIST);
  if (error != 0) return Result::kNotSupported;
  if (rename(temporary.c_str(), target.path.c_str()) != 0) {
    *status = Failure(target.path, "rename", errno);
    unlink(temporary.c_str());
  }
  return Result::kDone;
}

absl::Status WriteNamed(const Target& target, std::string_view bytes) {
  std::string temporary;
  const FileDescriptor fd(RetryOnSignal([&] {
    int opened;
    do {
      temporary = target.NewTemporaryPath();
      opened = open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    } while (opened < 0 && errno == EEXIST);
    return opened;
  }));
  if (fd.get() < 0) return Failure(target.path, "create", errno);
  absl::Status status;
  if (const int error = WriteAll(fd.get(), bytes)) {
    status = Failure(target.path, "write", error);
  } else if (const int error = Sync(fd.get())) {
    status = Failure(target.path, "fsync", error);
  } else if (rename(temporary.c_str(), target.path.c_str()) != 0) {
    status = Failure(target.path, "rename", errno);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace

absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes) {
  Target target;
  target.path = std::string(path);
  if (path.empty() || path.back() == '/' || path.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("cannot write " + target.path + ": not the name of a file");
  }
  // A rename would replace a link, a device or a pipe by a file.
  struct stat info;
  if (lstat(target.path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    char* resolved = realpath(target.path.c_str(), nullptr);
    if (resolved == nullptr) return Failure(target.path, "follow the link", errno);
    target.path = resolved;
    free(resolved);
  }
  if (stat(target.path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError("cannot write " + target.path + ": it exists and is not a regular file");
  }
  const size_t slash = target.path.rfind('/');
  target.directory = slash == std::string::npos ? "" : target.path.substr(0, slash + 1);
  target.base = slash == std::string::npos ? target.path : target.path.substr(slash + 1);

  absl::Status status;
  if (WriteUnnamed(target, bytes, &status) == Result::kNotSupported) status = WriteNamed(target, bytes);
  if (!status.ok()) return status;

  // Makes the rename last through a power failure, where the directory can be opened for it.
  const FileDescriptor directory(
      open(target.directory.empty() ? "." : target.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) fsync(directory.get());
  return absl::OkStatus();
}

}  // namespace hbmprof::internal
