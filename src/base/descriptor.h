// File descriptors that the library opens in the program's process.
// Header only, because the CUDA shim uses it, too, and cannot call hidden functions of a shared libhbmprof.
#ifndef HBMPROF_SRC_BASE_DESCRIPTOR_H_
#define HBMPROF_SRC_BASE_DESCRIPTOR_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {

// Calls `call`, and calls it again while it fails with EINTR. Returns the result of the last call.
template <typename Call>
auto RetryOnSignal(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Owns a descriptor, or none (-1).
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { Reset(-1); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  // Transfers the ownership to the caller.
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  // Closes the owned descriptor, and owns `fd` from now on. Does not change errno.
  void Reset(int fd) {
    const KeptErrno kept_errno;
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// During its life, this object occupies those of the descriptors 0, 1 and 2 that are free. So other code that opens
// files, for example a vendor's library, does not get and keep one of these numbers. The occupying descriptors can be
// neither read nor written, so for the program they behave as if they were closed.
class StandardDescriptorsTaken {
 public:
  StandardDescriptorsTaken() {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) is_free_ = is_free_ || fcntl(fd, F_GETFD) == -1;
    if (!is_free_ || stat("/", &root_) != 0) return;
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) {
      fd = open("/", O_PATH | O_CLOEXEC);
      if (fd >= 0 && fd <= STDERR_FILENO) taken_[fd] = true;
    }
    if (fd >= 0) close(fd);
  }
  ~StandardDescriptorsTaken() {
    const KeptErrno kept_errno;
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
      // The program may have opened a file of its own with this number.
      struct stat info;
      if (taken_[fd] && (fcntl(fd, F_GETFL) & O_PATH) != 0 && fstat(fd, &info) == 0 && info.st_dev == root_.st_dev &&
          info.st_ino == root_.st_ino) {
        close(fd);
      }
    }
  }
  StandardDescriptorsTaken(const StandardDescriptorsTaken&) = delete;
  StandardDescriptorsTaken& operator=(const StandardDescriptorsTaken&) = delete;

 private:
  bool is_free_ = false;
  bool taken_[STDERR_FILENO + 1] = {};
  struct stat root_ = {};
};

// Calls `open`, and returns its result: a descriptor, or -1 with errno set. The descriptor is never 0, 1 or 2. A
// program may have closed one of these. A new descriptor with its number would make the program read from that file or
// print into it.
template <typename Open>
int AboveStandard(Open open) {
  const StandardDescriptorsTaken taken;
  const int fd = RetryOnSignal(open);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  // The standard descriptors could not be occupied.
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const KeptErrno kept_errno;
  close(fd);
  return above;
}

// Returns the contents of a file in /proc; an empty string if it cannot be read. Throws only std::bad_alloc.
inline std::string ReadProcFile(const char* path) {
  const FileDescriptor file(AboveStandard([&] { return open(path, O_RDONLY | O_CLOEXEC); }));
  std::string text;
  char buffer[4096];
  ssize_t count = file.get() < 0 ? -1 : 1;
  while (count > 0) {
    count = RetryOnSignal([&] { return read(file.get(), buffer, sizeof(buffer)); });
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

// Returns the name of a process or thread, such as that of "self"; "" if it is not known. Throws only std::bad_alloc.
inline std::string NameInProc(const std::string& task) {
  std::string name = ReadProcFile(("/proc/" + task + "/comm").c_str());
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_DESCRIPTOR_H_
