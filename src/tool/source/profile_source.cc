#include "src/tool/source/profile_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/tool/recording/instant.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/symbols/profile_symbols.h"
#include "src/tool/torch/torch_snapshot.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

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

absl::StatusOr<std::string> ReadRecording(const SourceParts& parts) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RecordingReader> recording, OpenRecordingFile(parts.file));
  std::optional<RecordedInstant> instant;
  if (parts.moment.has_value()) {
    ASSIGN_OR_RETURN(instant, In(parts.file, InstantNamed(*recording, *parts.moment)));
  } else {
    instant = LastStateOf("", parts.file, *recording).instant;
  }
  ASSIGN_OR_RETURN(std::string bytes, ProfileAt(*recording, *instant));
  WarnOfGaps("", parts.file, *recording);  // some damage is found only while the events are read
  return bytes;
}

// Returns `start` and `suffix`; if this file exists, with a number between them.
std::string NewFile(const std::string& start, const std::string& suffix) {
  std::string file = Cat(start, suffix);
  for (int i = 1; access(file.c_str(), F_OK) == 0; ++i) file = Cat(start, ".", i, suffix);
  return file;
}

}  // namespace

SourceParts PartsOf(const std::string& source) {
  struct stat info;
  if (stat(source.c_str(), &info) == 0) return {source, std::nullopt};
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

std::string NewFileOf(const LiveProcess& process, const std::string& suffix) {
  std::string name;
  for (const char c : process.name) name += c == '/' || c == '.' || c == ' ' ? '_' : c;
  return NewFile(Cat("hbmprof.", name, ".", process.pid), suffix);
}

std::string NewFileFor(const std::string& source, const std::string& suffix) {
  constexpr size_t kMostBytes = 100;
  const SourceParts parts = PartsOf(source);
  std::string name = parts.file.substr(parts.file.rfind('/') + 1);
  for (const absl::string_view old : {".gz", ".pb", ".hbmrec", ".pickle"}) {
    if (absl::EndsWith(name, old)) name.resize(name.size() - old.size());
  }
  if (parts.moment.has_value()) name += "_" + *parts.moment;
  for (char& c : name) c = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  if (name.size() > kMostBytes) name.resize(kMostBytes);
  return NewFile(name.find_first_not_of("._-") == std::string::npos ? "profile" : name, suffix);
}

absl::StatusOr<std::vector<std::string>> ProfilesIn(const std::string& source) {
  std::error_code error;
  if (!std::filesystem::is_directory(source, error)) return std::vector{source};
  std::vector<std::string> profiles;
  std::string recording;
  std::filesystem::directory_iterator entry(source, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (absl::EndsWith(entry->path().string(), ".pb.gz")) profiles.push_back(entry->path());
    if (absl::EndsWith(entry->path().string(), ".hbmrec")) recording = entry->path();
  }
  if (error) return NotFound(source, ": cannot be read: ", error.message());
  const std::string note = recording.empty() ? "" : "; its recordings are not read: name one, such as " + recording;
  if (profiles.empty()) return NotFound(source, ": the folder has no profiles (*.pb.gz)", note);
  if (!note.empty()) PrintErrorText(Cat(source, ": the profiles of the folder are read", note, "\n"));
  absl::c_sort(profiles);
  return profiles;
}

bool IsRecordingFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  char begin[16] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return internal::IsRecording(std::string_view(begin, sizeof(begin))) || IsPickle(path);
}

bool IsSnapshot(const std::string& source) { return IsPickle(PartsOf(source).file); }

absl::StatusOr<std::string> ReadSource(const std::string& source) {
  if (source.rfind("http://", 0) == 0 || source.rfind("https://", 0) == 0) {
    return InvalidArgument("a URL is no source: download the profile first (curl -fsSo profile.pb.gz URL)");
  }
  const SourceParts parts = PartsOf(source);
  if (parts.moment.has_value() || IsRecordingFile(source)) return ReadRecording(parts);
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(source));
  if (process.has_value()) return QueryProcess(process->socket, "profile");
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(source));
  if (!internal::IsRecording(bytes) && !BeginsAsPickle(bytes)) return bytes;
  return InvalidArgument(source, ": is a recording or a snapshot of PyTorch: write it to a file, and name that");
}

absl::StatusOr<std::vector<ProfileBytes>> ReadSources(const std::vector<std::string>& sources) {
  Progress progress(sources.size(), "files read");
  std::vector<ProfileBytes> all;
  for (const std::string& source : sources) {
    ASSIGN_OR_RETURN(std::string bytes, ReadSource(source));
    CountInput(bytes.size());
    all.push_back({source, std::move(bytes)});
    progress.Advance(1);
  }
  return all;
}

absl::StatusOr<RawProfile> ReadProfile(const std::string& source) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadSource(source));
  CountInput(bytes.size());
  return ParseProfile(bytes, source);
}

absl::StatusOr<ProfileSet> ReadProfiles(const std::vector<std::string>& sources,
                                        const std::function<void()>& after_each) {
  Progress progress(sources.size(), "files read");
  return ProfileSet::ReadEach(sources.size(), [&](size_t i) -> absl::StatusOr<ProfileSet::Named> {
    ASSIGN_OR_RETURN(RawProfile raw, ReadProfile(sources[i]));
    AddLines(raw);
    progress.Advance(1);
    if (after_each) after_each();
    return ProfileSet::Named{sources[i], std::move(raw)};
  });
}

absl::StatusOr<SumsQuery> ReadQuery(const std::string& command, const std::vector<std::string>& sources,
                                    const SumsOptions& options, size_t first, const std::function<void()>& after_each) {
  std::optional<double> older;
  if (!options.older.empty()) {
    ASSIGN_OR_RETURN(older, SecondsOf("--older", options.older, 1, 1e9, "a time such as 10m, from 1s to 1e9s"));
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(sources, after_each));
  KeepLastOfEachProcess(command, first, profiles);
  if (older.has_value() || absl::c_linear_search(options.by, kBirthLabel)) {
    RETURN_IF_ERROR(profiles.LabelBirths(static_cast<int64_t>(std::ceil(older.value_or(0)))));
  }
  if (!older.has_value()) return MakeQuery(command, std::move(profiles), options);
  profiles.FilterLabels(ProfileSet::Removed::kInTotal,
                        [&](uint32_t labels) { return !profiles.LabelText(labels, kBirthLabel).empty(); });
  SumsOptions live = options;
  if (live.type.empty()) live.type = "inuse_space";
  ASSIGN_OR_RETURN(SumsQuery query, MakeQuery(command, std::move(profiles), live));
  if (query.type_name.rfind("inuse_", 0) == 0) return query;
  return InvalidArgument("--older selects live buffers, not ", query.type_name,
                         "; --type can be inuse_space or inuse_objects");
}

}  // namespace hbmprof::tool
