// See profile_source.h.
#include "src/tool/source/profile_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/export/recording.h"
#include "src/tool/recording/gaps.h"
#include "src/tool/recording/instant.h"
#include "src/tool/source/http_client.h"
#include "src/tool/torch/snapshot_pickle.h"
#include "src/tool/torch/torch_snapshot.h"
#include "src/tool/util/read_file.h"
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
  return source != "-" && !source.empty() && source.find('/') == std::string::npos && !MayBeFile(source) &&
         !PartsOf(source).moment.has_value();
}

absl::StatusOr<std::string> ReadRecording(const SourceParts& parts, std::vector<std::string>* gaps) {
  ASSIGN_OR_RETURN(const std::unique_ptr<internal::RecordingReader> recording, OpenRecordingFile(parts.file));
  ASSIGN_OR_RETURN(const RecordedInstant instant,
                   In(parts.file, InstantNamed(*recording, parts.moment.value_or("end"))));
  ASSIGN_OR_RETURN(std::string bytes, ProfileAt(*recording, instant));
  // Some damage is found only while the events are read.
  if (gaps != nullptr) *gaps = GapsOf(*recording);
  if (gaps == nullptr) WarnOfGaps("", parts.file, *recording);
  return bytes;
}

}  // namespace

SourceParts PartsOf(const std::string& source) {
  struct stat info;
  if (IsUrl(source) || stat(source.c_str(), &info) == 0) return {source, std::nullopt};
  for (size_t at = source.rfind('@'); at != std::string::npos && at > 0; at = source.rfind('@', at - 1)) {
    std::string file = source.substr(0, at);
    if (stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode)) return {std::move(file), source.substr(at + 1)};
  }
  return {source, std::nullopt};
}

std::vector<std::string> FilesOf(const std::vector<std::string>& sources) {
  std::vector<std::string> files;
  for (const std::string& source : sources) files.push_back(PartsOf(source).file);
  return files;
}

absl::StatusOr<std::optional<LiveProcess>> ProcessOf(const std::string& source) {
  if (!MayBeProcess(source)) return std::nullopt;
  absl::StatusOr<LiveProcess> process = FindProcess(ControlDirectory(), source);
  if (process.ok()) return *std::move(process);
  if (process.status().code() == absl::StatusCode::kInvalidArgument) return process.status();
  if (access(source.c_str(), F_OK) == 0 || errno != ENOENT) return std::nullopt;
  return NotFound(source, ": cannot be opened: ", std::strerror(ENOENT), "; ", MessageOf(process.status()));
}

std::string NewFileOf(const LiveProcess& process, const std::string& suffix, const std::string& folder) {
  std::string name;
  for (const char c : process.name) name += c == '/' || c == '.' || c == ' ' ? '_' : c;
  const std::string start = Cat(folder, folder.empty() ? "" : "/", "hbmprof.", name, ".", process.pid);
  std::string file = Cat(start, suffix);
  for (int i = 1; access(file.c_str(), F_OK) == 0; ++i) file = Cat(start, ".", i, suffix);
  return file;
}

bool IsRecordingFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  char begin[16] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return internal::IsRecording(std::string_view(begin, sizeof(begin))) || IsPickle(path);
}

absl::StatusOr<std::string> ReadSource(const std::string& source, std::vector<std::string>* gaps) {
  if (IsUrl(source) && access(source.c_str(), F_OK) != 0) return HttpGet(source);
  const SourceParts parts = PartsOf(source);
  if (parts.moment.has_value() || IsRecordingFile(source)) return ReadRecording(parts, gaps);
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(source));
  if (process.has_value()) return QueryProcess(process->socket, "profile");
  return ReadFile(source);
}

}  // namespace hbmprof::tool
