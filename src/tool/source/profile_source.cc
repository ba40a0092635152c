// See profile_source.h.
#include "src/tool/source/profile_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "src/export/recording.h"
#include "src/tool/recording/gaps.h"
#include "src/tool/recording/instant.h"
#include "src/tool/source/http_client.h"
#include "src/tool/util/read_file.h"
#include "src/tool/util/status_macros.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

bool IsUrl(const std::string& source) { return source.rfind("http://", 0) == 0 || source.rfind("https://", 0) == 0; }

// Returns whether there is a file `source` that can be a profile. An executable is no profile: the current folder often
// contains the program of a running process, under the name of the process.
bool MayBeFile(const std::string& source) {
  struct stat info;
  if (stat(source.c_str(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode)) return true;
  char begin[4] = {};
  std::ifstream(source, std::ios::binary).read(begin, sizeof(begin));
  return std::string_view(begin, sizeof(begin)) != "\177ELF";
}

// Returns whether `source` can be the name of a process. Such a name has no slash, and is not that of a file, unless
// the file is a program.
bool MayBeProcess(const std::string& source) {
  return source != "-" && !source.empty() && source.find('/') == std::string::npos && !MayBeFile(source);
}

}  // namespace

absl::StatusOr<std::optional<LiveProcess>> ProcessOf(const std::string& source) {
  if (!MayBeProcess(source)) return std::nullopt;
  absl::StatusOr<LiveProcess> process = FindProcess(ControlDirectory(), source);
  if (process.ok()) return *std::move(process);
  if (process.status().code() == absl::StatusCode::kInvalidArgument) return process.status();
  if (access(source.c_str(), F_OK) == 0 || errno != ENOENT) return std::nullopt;
  return absl::NotFoundError(
      Cat(source, ": cannot be opened: ", std::strerror(ENOENT), "; ", std::string(process.status().message())));
}

std::string NewProfilePath(const LiveProcess& process, const std::string& folder) {
  std::string name;
  for (const char c : process.name) name += c == '/' || c == '.' || c == ' ' ? '_' : c;
  const std::string start = Cat(folder, folder.empty() ? "" : "/", "hbmprof.", name, ".", process.pid);
  std::string file = Cat(start, ".pb.gz");
  for (int i = 1; access(file.c_str(), F_OK) == 0; ++i) file = Cat(start, ".", i, ".pb.gz");
  return file;
}

bool IsRecordingFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  char begin[16] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return internal::IsRecording(std::string_view(begin, sizeof(begin)));
}

absl::StatusOr<std::string> ReadSource(const std::string& source) {
  if (IsUrl(source) && access(source.c_str(), F_OK) != 0) return HttpGet(source);
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(source));
  if (process.has_value()) return QueryProcess(process->socket, "profile");
  if (IsRecordingFile(source)) {
    const auto recording = internal::RecordingReader::Open(source);
    if (!recording.ok()) return recording.status();
    absl::StatusOr<std::string> bytes = ProfileAt(**recording, EndOf(**recording));
    if (bytes.ok()) WarnOfGaps("", source, **recording);
    return bytes;
  }
  return ReadFile(source);
}

}  // namespace hbmprof::tool
