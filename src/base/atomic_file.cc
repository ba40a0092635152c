#include "src/base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <system_error>

#include "src/base/write_all.h"

namespace hbmprof::internal {
namespace {

// The temporary names in a directory are ".hbmprof.N.tmp". A process holds a lock on its file while the file has such a
// name. So if the file can be locked, its process has ended.
std::string TemporaryName(int number) { return ".hbmprof." + std::to_string(number) + ".tmp"; }
constexpr int kMaxTemporaryNames = 1000;
// The lowest free number is used, so stale files have low numbers. RemoveStale checks at least this many names, even if
// some of them are free.
constexpr int kMinScannedNames = 8;

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

// Returns 0 or an errno value. It is no error if the file system does not support fsync.
int Sync(int fd) {
  if (RetryOnSignal([&] { return fsync(fd); }) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? 0 : errno;
}

int OpenAt(int directory, const char* name, int flags, mode_t mode = 0) {
  return AboveStandard([&] { return openat(directory, name, flags | O_CLOEXEC, mode); });
}

FileIdentity IdentityFrom(const struct stat& info) { return {info.st_dev, info.st_ino, info.st_mtim}; }

bool IsSameFile(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// The target of a path: a name in an open directory. All later steps use that directory, so changes of links in the
// path have no effect on them.
struct Target {
  std::string path;  // as given by the caller
  FileDescriptor directory;
  bool can_sync = false;  // whether `directory` can be synced
  std::string base;
  bool exists = false;
  struct stat info = {};  // of the file with this name
};

// Resolves target->path into the other members of `target`.
absl::Status Resolve(Target* target) {
  const std::string& path = target->path;
  const size_t slash = path.rfind('/');
  target->base = slash == std::string::npos ? path : path.substr(slash + 1);
  if (target->base.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("cannot write " + path + ": not the name of a file");
  }
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  int fd = OpenAt(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY);
  target->can_sync = fd >= 0;
  if (fd < 0 && errno == EACCES) fd = OpenAt(AT_FDCWD, directory.c_str(), O_PATH | O_DIRECTORY);
  if (fd < 0) return WriteFailure(path, "open the directory", errno);
  target->directory.Reset(fd);
  target->exists = fstatat(fd, target->base.c_str(), &target->info, AT_SYMLINK_NOFOLLOW) == 0;
  return target->exists || errno == ENOENT ? absl::OkStatus() : WriteFailure(path, "stat", errno);
}

// Returns an error if the target is not a regular file, or if it is one of another user in a directory like /tmp: the
// new file would get its owner.
absl::Status CheckReplaced(const Target& target) {
  if (!S_ISREG(target.info.st_mode)) {
    return absl::InvalidArgumentError("cannot write " + target.path + ": it exists and is not a regular file");
  }
  struct stat directory;
  if (fstat(target.directory.get(), &directory) != 0) return WriteFailure(target.path, "stat the directory", errno);
  constexpr mode_t kAnyone = S_ISVTX | S_IWOTH;
  const uid_t owner = target.info.st_uid;
  if (owner == geteuid() || owner == directory.st_uid || (directory.st_mode & kAnyone) != kAnyone) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("cannot write " + target.path +
                                     ": it is a file of another user, in a directory that anyone may write to");
}

// Removes the temporary files of processes that have ended.
void RemoveStale(int directory) {
  bool exists = true;
  for (int number = 0; number < kMaxTemporaryNames && (exists || number < kMinScannedNames); ++number) {
    const std::string name = TemporaryName(number);
    struct stat info;
    exists = fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) continue;
    const FileDescriptor file(OpenAt(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    if (file.get() < 0 || flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    // It may have been renamed and unlocked since it was opened.
    struct stat locked;
    if (fstat(file.get(), &locked) == 0 && fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        IsSameFile(locked, info)) {
      unlinkat(directory, name.c_str(), 0);
    }
  }
}

// During its life, no other call with FileRules::only_over replaces a file in the directory. The constructor waits at
// most 0.2 s for the lock and then continues without it, because another program may hold a lock on the directory for
// ever.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory) : directory_(directory) {
    const timespec pause = {0, 4'000'000};
    for (int i = 0; i < 50 && flock(directory_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++i) {
      pselect(0, nullptr, nullptr, nullptr, &pause, nullptr);  // not usleep: see spin_lock.cc
    }
  }
  ~DirectoryLock() { flock(directory_, LOCK_UN); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  const int directory_;
};

// A new file with a temporary name. It gets the name of `target` when it is complete, and is removed if it is not
// completed.
class Replacement {
 public:
  Replacement(const Target& target, const FileRules& rules) : target_(target), rules_(rules) {}
  ~Replacement() {
    if (!temporary_.empty()) unlinkat(directory_, temporary_.c_str(), 0);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  absl::Status Write(const std::function<absl::Status(FileOutput&)>& write) {
    if (const int error = Create()) return WriteFailure(target_.path, "create", error);
    if (const int error = Prepare()) return WriteFailure(target_.path, "set the permissions", error);
    FileOutput output(file_.get(), target_.path);
    absl::Status status = write(output);
    if (status.ok()) status = output.Flush();
    if (!status.ok()) return status;
    if (const int error = Sync(file_.get())) return WriteFailure(target_.path, "fsync", error);
    const int error = target_.exists ? EEXIST : RenameToNew();
    if (error == EEXIST && (rules_.must_be_new || rules_.only_over == FileIdentity())) return Exists(target_.path);
    if (error == EEXIST) return Replace();
    return error == 0 ? absl::OkStatus() : WriteFailure(target_.path, "rename", error);
  }

  FileDescriptor& file() { return file_; }

  static absl::Status Exists(const std::string& path) {
    return absl::AlreadyExistsError("cannot write " + path + ": the file exists and may not be replaced");
  }

 private:
  mode_t CreationMode() const { return !target_.exists && rules_.mode.less_umask ? rules_.mode.bits : 0600; }

  // These return 0 or an errno value.

  int Create() {
    for (int number = 0; number < kMaxTemporaryNames; ++number) {
      const std::string name = TemporaryName(number);
      file_.Reset(OpenAt(directory_, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW, CreationMode()));
      if (file_.get() < 0 && errno == EEXIST) continue;
      if (file_.get() < 0) return errno;
      // Another process may have removed it as stale before it was locked.
      struct stat info;
      if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
      if (fstat(file_.get(), &info) == 0 && info.st_nlink == 0) continue;
      temporary_ = name;
      return 0;
    }
    return EEXIST;
  }

  int Prepare() {
    struct stat info;
    if (fstat(file_.get(), &info) != 0) return errno;
    // The program may have printed into the file while its descriptor had the number of a standard descriptor, see
    // AboveStandard.
    if (info.st_size != 0 && (ftruncate(file_.get(), 0) != 0 || lseek(file_.get(), 0, SEEK_SET) != 0)) return errno;
    mode_t mode = rules_.mode.bits;
    if (target_.exists) {
      const struct stat& old = target_.info;
      mode = old.st_mode & 0777;
      const bool same_owner = info.st_uid == old.st_uid && info.st_gid == old.st_gid;
      if (!same_owner && fchown(file_.get(), old.st_uid, old.st_gid) != 0 && info.st_gid != old.st_gid &&
          fchown(file_.get(), static_cast<uid_t>(-1), old.st_gid) != 0) {
        mode &= ~mode_t{070} | (mode & 07) << 3;  // not the old file's group: it gets at most the rights of others
      }
    } else if (rules_.mode.less_umask) {
      return 0;
    }
    return mode == 0600 || fchmod(file_.get(), mode) == 0 ? 0 : errno;
  }

  // Renames the file to the name of the target. Returns EEXIST if there is such a file.
  int RenameToNew() {
    const char* const base = target_.base.c_str();
    if (renameat2(directory_, temporary_.c_str(), directory_, base, RENAME_NOREPLACE) == 0) {
      temporary_.clear();
      return 0;
    }
    if (errno == EEXIST) return EEXIST;
    // The destructor removes the temporary name.
    if (linkat(directory_, temporary_.c_str(), directory_, base, 0) == 0) return 0;
    // The file system supports neither RENAME_NOREPLACE nor hard links.
    struct stat info;
    return errno == EEXIST || fstatat(directory_, base, &info, AT_SYMLINK_NOFOLLOW) == 0 ? EEXIST : Rename();
  }

  int Rename() {
    if (renameat(directory_, temporary_.c_str(), directory_, target_.base.c_str()) != 0) return errno;
    temporary_.clear();
    return 0;
  }

  // Replaces the existing file.
  absl::Status Replace() {
    std::optional<DirectoryLock> lock;
    if (rules_.only_over.has_value()) {
      lock.emplace(directory_);
      struct stat info;
      if (fstatat(directory_, target_.base.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          !(IdentityFrom(info) == *rules_.only_over)) {
        return Exists(target_.path);
      }
    }
    const int error = Rename();
    return error == 0 ? absl::OkStatus() : WriteFailure(target_.path, "rename", error);
  }

  const Target& target_;
  const FileRules& rules_;
  const int directory_ = target_.directory.get();
  FileDescriptor file_;
  std::string temporary_;  // temporary name of `file_`; empty if it has none
};

}  // namespace

absl::Status WriteFailure(const std::string& path, const char* step, int error) {
  return absl::Status(CodeOf(error),
                      "cannot write " + path + ": " + step + ": " + std::generic_category().message(error));
}

FileIdentity IdentityOf(std::string_view path) {
  struct stat info;
  return stat(std::string(path).c_str(), &info) == 0 ? IdentityFrom(info) : FileIdentity();
}

absl::Status FileOutput::Append(std::string_view bytes) {
  constexpr size_t kBufferBytes = 1 << 16;
  if (!status_.ok()) return status_;
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    if (const absl::Status status = Flush(); !status.ok()) return status;
  }
  if (bytes.size() < kBufferBytes) {
    buffer_.append(bytes);
    return absl::OkStatus();
  }
  if (const int error = WriteAll(fd_, bytes)) return status_ = WriteFailure(path_, "write", error);
  written_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status FileOutput::Overwrite(int64_t offset, std::string_view bytes) {
  if (const absl::Status status = Flush(); !status.ok()) return status;
  const ssize_t done = RetryOnSignal([&] { return pwrite(fd_, bytes.data(), bytes.size(), offset); });
  if (done == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return status_ = WriteFailure(path_, "write", done < 0 ? errno : EIO);
}

absl::Status FileOutput::Flush() {
  if (!status_.ok() || buffer_.empty()) return status_;
  if (const int error = WriteAll(fd_, buffer_)) return status_ = WriteFailure(path_, "write", error);
  written_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes, const FileRules& rules) {
  return WriteFileAtomically(
      path, [bytes](FileOutput& output) { return output.Append(bytes); }, rules);
}

absl::Status WriteFileAtomically(std::string_view path, const std::function<absl::Status(FileOutput&)>& write,
                                 const FileRules& rules) {
  Target target;
  target.path = std::string(path);
  if (const absl::Status status = Resolve(&target); !status.ok()) return status;
  if (target.exists) {
    if (rules.must_be_new || (rules.only_over.has_value() && !(IdentityFrom(target.info) == *rules.only_over))) {
      return Replacement::Exists(target.path);
    }
    if (const absl::Status status = CheckReplaced(target); !status.ok()) return status;
  }
  RemoveStale(target.directory.get());
  Replacement replacement(target, rules);
  if (const absl::Status status = replacement.Write(write); !status.ok()) return status;
  struct stat info;
  if (rules.written != nullptr && fstat(replacement.file().get(), &info) == 0) *rules.written = IdentityFrom(info);
  if (rules.keep_open != nullptr) rules.keep_open->Reset(replacement.file().Release());
  // Syncs the directory, so that the new name survives a power failure.
  if (target.can_sync) fsync(target.directory.get());
  return absl::OkStatus();
}

}  // namespace hbmprof::internal
