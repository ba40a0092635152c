// See read_file.h.
#include "src/tool/util/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/descriptor.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

std::string SystemError() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  internal::FileDescriptor file;
  if (path != "-") file.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int descriptor = path == "-" ? STDIN_FILENO : file.get();
  if (descriptor < 0) {
    const std::string text = Cat(path, ": cannot be opened: ", SystemError());
    return errno == ENOENT ? absl::NotFoundError(text) : absl::PermissionDeniedError(text);
  }
  struct stat status;
  if (fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
    return InvalidArgument(path, ": is a directory; name the profiles in it, such as ", path, "/*.pb.gz");
  }
  std::string bytes;
  std::string chunk(1 << 18, '\0');
  while (true) {
    const ssize_t count = read(descriptor, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::InternalError(Cat(path, ": cannot be read: ", SystemError()));
    if (count == 0) return bytes;
    bytes.append(chunk.data(), static_cast<size_t>(count));
    if (bytes.size() > kMaxFileBytes) return absl::ResourceExhaustedError(path + ": is larger than 1 GiB");
  }
}

}  // namespace hbmprof::tool
