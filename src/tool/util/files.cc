#include "src/tool/util/files.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "src/base/descriptor.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

using internal::FileOutput;

// If the reader of standard output has closed its pipe, ends this process by SIGPIPE, as an ordinary write would: a
// write of FileOutput raises no signal. Does nothing otherwise, or if the signal is ignored.
void EndIfPipeIsClosed() {
  pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) raise(SIGPIPE);
}

absl::Status WriteTo(int descriptor, const std::string& name, const std::function<absl::Status(FileOutput&)>& write) {
  FileOutput output(descriptor, name);
  const absl::Status status = write(output);
  return status.ok() ? output.Flush() : status;
}

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr size_t kBaseMemory = size_t{1} << 30;
constexpr size_t kPerInputByte = 100;
constexpr char kMemoryVariable[] = "HBMPROF_TOOL_MEMORY";

std::string limited_command;  // "": there is no limit
size_t counted_bytes = 0;

int64_t VariableBytes() {
  int64_t bytes = 0;
  const char* variable = std::getenv(kMemoryVariable);
  return variable != nullptr && ParseBytes(variable, &bytes) ? bytes : 0;
}

// RLIMIT_DATA counts all private writable memory.
void ApplyLimit() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  rlimit limit;
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(MemoryFor(counted_bytes), limit.rlim_max);
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

}  // namespace

bool IsStandardOutput(const std::string& path) { return path.empty() || path == "-"; }

absl::Status WriteOutput(const std::string& path, const std::function<absl::Status(FileOutput&)>& write) {
  if (IsStandardOutput(path)) {
    const absl::Status status = WriteTo(STDOUT_FILENO, "standard output", write);
    if (!status.ok()) EndIfPipeIsClosed();
    return status;
  }
  struct stat info;
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists || (!S_ISCHR(info.st_mode) && !S_ISFIFO(info.st_mode))) {
    return internal::WriteFileAtomically(path, write, internal::kAsAnyCommand);
  }
  const internal::FileDescriptor stream(open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (stream.get() < 0) return internal::WriteFailure(path, "open", errno);
  return WriteTo(stream.get(), path, write);
}

absl::Status WriteOutput(const std::string& path, std::string_view bytes) {
  return WriteOutput(path, [bytes](FileOutput& output) { return output.Append(bytes); });
}

absl::Status CheckIsNoInput(const std::string& path, const std::vector<std::string>& inputs) {
  struct stat output;
  if (IsStandardOutput(path) || stat(path.c_str(), &output) != 0 || !S_ISREG(output.st_mode)) return absl::OkStatus();
  for (const std::string& input : inputs) {
    struct stat info;
    const bool is_known = (input == "-" ? fstat(STDIN_FILENO, &info) : stat(input.c_str(), &info)) == 0;
    if (!is_known || info.st_dev != output.st_dev || info.st_ino != output.st_ino) continue;
    return InvalidArgument("-o ", path, ": this is the input ", input, ", which would be replaced; name another file");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  internal::FileDescriptor file;
  if (path != "-") file.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int descriptor = path == "-" ? STDIN_FILENO : file.get();
  if (descriptor < 0) {
    const std::string text = Cat(path, ": cannot be opened: ", std::strerror(errno));
    return errno == ENOENT ? NotFound(text) : PermissionDenied(text);
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
    if (count < 0) return absl::InternalError(Cat(path, ": cannot be read: ", std::strerror(errno)));
    if (count == 0) return bytes;
    bytes.append(chunk.data(), static_cast<size_t>(count));
    if (bytes.size() > kMaxFileBytes) return ResourceExhausted(path + ": is larger than 1 GiB");
  }
}

absl::Status CheckMemoryVariable() {
  const char* variable = std::getenv(kMemoryVariable);
  if (variable == nullptr || *variable == '\0' || VariableBytes() > 0) return absl::OkStatus();
  return InvalidArgument(kMemoryVariable, "=", variable, ": write a size such as 8GiB");
}

size_t MemoryFor(size_t input_bytes) {
  const int64_t bytes = VariableBytes();
  return bytes > 0 ? static_cast<size_t>(bytes) : kBaseMemory + input_bytes * kPerInputByte;
}

void EnforceMemoryLimit(const std::string& name) {
  limited_command = name;
  // This does not throw an exception, because destructors can allocate too, for example that of a JSON value.
  std::set_new_handler([] {
    LiftMemoryLimit();
    // The limit, or the machine has no more memory.
    PrintError(limited_command,
               Cat("needs more memory than ", Bytes(static_cast<int64_t>(MemoryFor(counted_bytes))), ", the limit",
                   counted_bytes == 0 ? "" : Cat(" for ", Bytes(static_cast<int64_t>(counted_bytes)), " of input"),
                   "; HBMPROF_TOOL_MEMORY=8GiB in the environment sets another limit"));
    std::fflush(stdout);
    _exit(kUnusable);
  });
  ApplyLimit();
}

void LiftMemoryLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_DATA, &limit);
}

void CountInput(size_t bytes) {
  if (limited_command.empty()) return;
  counted_bytes += bytes;
  ApplyLimit();
}

}  // namespace hbmprof::tool
