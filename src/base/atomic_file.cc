// Replacing a file atomically. Knows nothing of what is in it.
#include "src/base/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <system_error>

#include "src/base/write_all.h"

namespace hbmprof::internal {
namespace {

// The temporary names of a directory, ".hbmprof.N.tmp". A process holds a lock on its file while that has such a name,
// so a file that can be locked is of a process that has ended.
std::string TemporaryName(int number) { return ".hbmprof." + std::to_string(number) + ".tmp"; }
constexpr int kMostTemporaryNames = 1000;
// The lowest free name is taken, so stale ones are looked for among the first of them.
constexpr int kFewTemporaryNames = 8;

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

// File systems that cannot sync have nothing better to offer; that is no error. Returns 0 or an errno value.
int Sync(int fd) {
  if (RetryOnSignal([&] { return fsync(fd); }) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? 0 : errno;
}

int OpenAt(int directory, const char* name, int flags, mode_t mode = 0) {
  return AboveStandard([&] { return openat(directory, name, flags | O_CLOEXEC, mode); });
}

FileIdentity IdentityFrom(const struct stat& info) { return {info.st_dev, info.st_ino, info.st_mtim}; }

bool IsSameFile(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Where a path leads: a name in an open directory. Everything that follows is done there, so it does not matter what
// becomes of the links on the way.
struct Target {
  std::string path;  // as the caller named it
  FileDescriptor directory;
  bool can_sync = false;  // the directory
  std::string base;
  bool exists = false;
  struct stat info = {};  // of what has the name
};

absl::Status OpenDirectory(int from, const std::string& name, Target* target) {
  int fd = OpenAt(from, name.c_str(), O_RDONLY | O_DIRECTORY);
  target->can_sync = fd >= 0;
  if (fd < 0 && errno == EACCES) fd = OpenAt(from, name.c_str(), O_PATH | O_DIRECTORY);
  if (fd < 0) return Failure(target->path, "open the directory", errno);
  target->directory.Reset(fd);
  return absl::OkStatus();
}

// Whether the kernel would not let this process use what another user has put there, under fs.protected_symlinks and
// fs.protected_regular.
absl::Status RefuseTrap(const Target& target, const struct stat& info) {
  if (info.st_uid == geteuid()) return absl::OkStatus();
  struct stat directory;
  if (fstat(target.directory.get(), &directory) != 0) return Failure(target.path, "look at the directory", errno);
  constexpr mode_t kAnyone = S_ISVTX | S_IWOTH;
  if ((directory.st_mode & kAnyone) != kAnyone || directory.st_uid == info.st_uid) return absl::OkStatus();
  return absl::PermissionDeniedError("cannot write " + target.path + ": " + target.base + " is a " +
                                     (S_ISLNK(info.st_mode) ? "link" : "file") +
                                     " of another user, in a directory that anyone may write to");
}

absl::Status NotRegular(const Target& target) {
  return absl::InvalidArgumentError("cannot write " + target.path + ": it exists and is not a regular file");
}

// Makes `rest` the path that the link target->base holds.
absl::Status ReadLink(Target* target, std::string* rest) {
  const int directory = target->directory.get();
  const FileDescriptor link(OpenAt(directory, target->base.c_str(), O_PATH | O_NOFOLLOW));
  struct stat info;
  if (link.get() < 0 || fstat(link.get(), &info) != 0) return Failure(target->path, "follow the link", errno);
  if (!S_ISLNK(info.st_mode)) {  // it has just been replaced
    *rest = target->base;
    return absl::OkStatus();
  }
  if (const absl::Status status = RefuseTrap(*target, info); !status.ok()) return status;
  // Before the text is believed: the links of /proc lead to what may have no path.
  if (fstatat(directory, target->base.c_str(), &info, 0) == 0 && !S_ISREG(info.st_mode)) return NotRegular(*target);
  char text[PATH_MAX];
  const ssize_t length = readlinkat(link.get(), "", text, sizeof(text));
  if (length < 0) return Failure(target->path, "follow the link", errno);
  if (length == sizeof(text)) return Failure(target->path, "follow the link", ENAMETOOLONG);
  rest->assign(text, static_cast<size_t>(length));
  return absl::OkStatus();
}

// Fills `target`, of which `path` is set.
absl::Status Resolve(bool follow, Target* target) {
  constexpr int kMostLinks = 40;
  std::string rest = target->path;
  int from = AT_FDCWD;
  for (int links = 0; links <= kMostLinks; ++links) {
    const size_t slash = rest.rfind('/');
    target->base = slash == std::string::npos ? rest : rest.substr(slash + 1);
    if (target->base.empty() || rest.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError("cannot write " + target->path + ": not the name of a file");
    }
    if (links == 0 || slash != std::string::npos) {
      const std::string name = slash == std::string::npos ? "." : rest.substr(0, slash + 1);
      if (const absl::Status status = OpenDirectory(from, name, target); !status.ok()) return status;
    }
    from = target->directory.get();
    target->exists = fstatat(from, target->base.c_str(), &target->info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!target->exists) return errno == ENOENT ? absl::OkStatus() : Failure(target->path, "look for it", errno);
    if (!follow || S_ISREG(target->info.st_mode)) return absl::OkStatus();
    if (!S_ISLNK(target->info.st_mode)) return NotRegular(*target);
    if (const absl::Status status = ReadLink(target, &rest); !status.ok()) return status;
  }
  return Failure(target->path, "follow the link", ELOOP);
}

// Removes the temporary files of processes that have ended.
void RemoveStale(int directory) {
  bool exists = true;
  for (int number = 0; number < kMostTemporaryNames && (exists || number < kFewTemporaryNames); ++number) {
    const std::string name = TemporaryName(number);
    struct stat info;
    exists = fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) continue;
    const FileDescriptor file(OpenAt(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    if (file.get() < 0 || flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    // Since it was opened, it may have been renamed and unlocked.
    struct stat locked;
    if (fstat(file.get(), &locked) == 0 && fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        IsSameFile(locked, info)) {
      unlinkat(directory, name.c_str(), 0);
    }
  }
}

// While it lives, no other call with FileRules::only_over replaces a file of the directory. Waits for at most 0.2 s for
// one that is at it: somebody else may have locked the directory for good.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory) : directory_(directory) {
    for (int i = 0; i < 50 && flock(directory_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++i) usleep(4000);
  }
  ~DirectoryLock() { flock(directory_, LOCK_UN); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  const int directory_;
};

// A file that becomes `target` when it is complete, and is gone if it does not get so far.
class Replacement {
 public:
  Replacement(const Target& target, const FileRules& rules) : target_(target), rules_(rules) {}
  ~Replacement() {
    if (!temporary_.empty()) unlinkat(directory_, temporary_.c_str(), 0);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  enum class Way { kUnnamed, kNamed };

  // False: nothing was done, since this system knows no files without a name, or cannot give them one.
  bool Write(Way way, std::string_view bytes, absl::Status* status) {
    if (way == Way::kUnnamed) {
      file_.Reset(OpenAt(directory_, ".", O_TMPFILE | O_WRONLY, CreationMode()));
      if (file_.get() < 0) return false;
    } else if (const int error = CreateNamed()) {
      *status = Failure(target_.path, "create", error);
      return true;
    }
    const char* step = "set the permissions";
    int error = Prepare();
    if (error == 0) {
      step = "write";
      error = WriteAll(file_.get(), bytes);
    }
    if (error == 0) {
      step = "fsync";
      error = Sync(file_.get());
    }
    if (error != 0) {
      *status = Failure(target_.path, step, error);
      return true;
    }
    error = target_.exists ? EEXIST : way == Way::kUnnamed ? LinkTo(target_.base) : RenameToNew();
    if (error == EEXIST && (rules_.must_be_new || rules_.only_over == FileIdentity())) {
      *status = Exists(target_.path);
      return true;
    }
    if (error == EEXIST) return Replace(way, status);
    if (error != 0 && way == Way::kUnnamed) return false;
    *status = error == 0 ? absl::OkStatus() : Failure(target_.path, "rename", error);
    return true;
  }

  FileDescriptor& file() { return file_; }

  static absl::Status Exists(const std::string& path) {
    return absl::AlreadyExistsError("cannot write " + path + ": it is there, and not what may be replaced");
  }

 private:
  mode_t CreationMode() const { return !target_.exists && rules_.mode.less_umask ? rules_.mode.bits : 0600; }

  // These return 0 or an errno value.

  int CreateNamed() {
    for (int number = 0; number < kMostTemporaryNames; ++number) {
      const std::string name = TemporaryName(number);
      file_.Reset(OpenAt(directory_, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW, CreationMode()));
      if (file_.get() < 0 && errno == EEXIST) continue;
      if (file_.get() < 0) return errno;
      // Before it was locked, another process may have taken it for a stale one.
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
    // What the program printed while the file had the number of a standard descriptor, see AboveStandard.
    if (info.st_size != 0 && (ftruncate(file_.get(), 0) != 0 || lseek(file_.get(), 0, SEEK_SET) != 0)) return errno;
    mode_t mode = rules_.mode.bits;
    if (target_.exists) {
      const struct stat& old = target_.info;
      mode = old.st_mode & 0777;
      const bool same_owner = info.st_uid == old.st_uid && info.st_gid == old.st_gid;
      if (!same_owner && fchown(file_.get(), old.st_uid, old.st_gid) != 0 && info.st_gid != old.st_gid &&
          fchown(file_.get(), static_cast<uid_t>(-1), old.st_gid) != 0) {
        mode &= ~mode_t{070} | (mode & 07) << 3;  // another group gets what all have
      }
    } else if (rules_.mode.less_umask) {
      return 0;
    }
    return mode == 0600 || fchmod(file_.get(), mode) == 0 ? 0 : errno;
  }

  // Gives a file without a name this one.
  int LinkTo(const std::string& name) {
    if (linkat(file_.get(), "", directory_, name.c_str(), AT_EMPTY_PATH) == 0) return 0;
    if (errno == EEXIST) return EEXIST;
    // Up to Linux 6.9 that takes a privilege.
    const std::string self = "/proc/self/fd/" + std::to_string(file_.get());
    return linkat(AT_FDCWD, self.c_str(), directory_, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  }

  // Of a file with a temporary name; EEXIST if there is a file.
  int RenameToNew() {
    const char* const base = target_.base.c_str();
    if (renameat2(directory_, temporary_.c_str(), directory_, base, RENAME_NOREPLACE) == 0) {
      temporary_.clear();
      return 0;
    }
    if (errno == EEXIST) return EEXIST;
    // The temporary name goes with this object.
    if (linkat(directory_, temporary_.c_str(), directory_, base, 0) == 0) return 0;
    // A file system that knows neither.
    struct stat info;
    return errno == EEXIST || fstatat(directory_, base, &info, AT_SYMLINK_NOFOLLOW) == 0 ? EEXIST : Rename();
  }

  int Rename() {
    if (renameat(directory_, temporary_.c_str(), directory_, target_.base.c_str()) != 0) return errno;
    temporary_.clear();
    return 0;
  }

  // See Write.
  bool Replace(Way way, absl::Status* status) {
    if (way == Way::kUnnamed) {
      flock(file_.get(), LOCK_EX | LOCK_NB);
      int error = EEXIST;
      for (int number = 0; number < kMostTemporaryNames && error == EEXIST; ++number) {
        const std::string name = TemporaryName(number);
        error = LinkTo(name);
        if (error == 0) temporary_ = name;
      }
      if (error != 0) return false;
    }
    std::optional<DirectoryLock> lock;
    if (rules_.only_over.has_value()) {
      lock.emplace(directory_);
      struct stat info;
      if (fstatat(directory_, target_.base.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          !(IdentityFrom(info) == *rules_.only_over)) {
        *status = Exists(target_.path);
        return true;
      }
    }
    const int error = Rename();
    *status = error == 0 ? absl::OkStatus() : Failure(target_.path, "rename", error);
    return true;
  }

  const Target& target_;
  const FileRules& rules_;
  const int directory_ = target_.directory.get();
  FileDescriptor file_;
  std::string temporary_;  // the name that file_ has; empty if it has none or its final one
};

}  // namespace

FileIdentity IdentityOf(std::string_view path) {
  struct stat info;
  return stat(std::string(path).c_str(), &info) == 0 ? IdentityFrom(info) : FileIdentity();
}

absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes, const FileRules& rules) {
  Target target;
  target.path = std::string(path);
  if (const absl::Status status = Resolve(!rules.must_be_new, &target); !status.ok()) return status;
  if (target.exists) {
    if (rules.must_be_new || (rules.only_over.has_value() && !(IdentityFrom(target.info) == *rules.only_over))) {
      return Replacement::Exists(target.path);
    }
    if (const absl::Status status = RefuseTrap(target, target.info); !status.ok()) return status;
  }
  RemoveStale(target.directory.get());
  for (const auto way : {Replacement::Way::kUnnamed, Replacement::Way::kNamed}) {
    Replacement replacement(target, rules);
    absl::Status status;
    if (!replacement.Write(way, bytes, &status)) continue;
    if (!status.ok()) return status;
    struct stat info;
    if (rules.written != nullptr && fstat(replacement.file().get(), &info) == 0) *rules.written = IdentityFrom(info);
    if (rules.keep_open != nullptr) rules.keep_open->Reset(replacement.file().Release());
    break;
  }
  // Makes the name last through a power failure.
  if (target.can_sync) fsync(target.directory.get());
  return absl::OkStatus();
}

absl::Status WriteInPlace(int fd, const FileIdentity& identity, std::string_view path, std::string_view bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_dev != identity.device || info.st_ino != identity.inode || info.st_nlink == 0 ||
      info.st_size != 0) {
    return absl::FailedPreconditionError("cannot write " + std::string(path) +
                                         ": the program has closed it, or somebody has removed or written it");
  }
  const int error = WriteAll(fd, bytes);
  if (error == 0) return absl::OkStatus();
  static_cast<void>(!ftruncate(fd, 0));
  return Failure(std::string(path), "write", error);
}

}  // namespace hbmprof::internal
