#include "src/api/output/kept_profiles.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/api/output/output_file.h"
#include "src/api/output/output_path.h"
#include "src/api/recording/recording.h"
#include "src/base/message.h"

namespace hbmprof::internal {
namespace {

constexpr uint64_t kFreeDiskBytes = uint64_t{64} << 20;

// Returns whether kFreeDiskBytes of the file system of the directory of `pattern` remain free after a file of `bytes`
// bytes is written. Returns true if the system does not say.
bool HasFreeDisk(const std::string& pattern, size_t bytes) {
  const std::string path = OutputPattern(pattern).Path(0);
  const size_t slash = path.rfind('/');
  struct statvfs info;
  if (statvfs(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), &info) != 0) return true;
  return uint64_t{info.f_bavail} * info.f_frsize >= kFreeDiskBytes + bytes;
}

// Returns the size of the file in bytes; 0 if there is none.
int64_t SizeOf(const std::string& path) {
  struct stat info;
  return !path.empty() && stat(path.c_str(), &info) == 0 ? int64_t{info.st_size} : 0;
}

void RemoveFlight(const std::string& reason, KeptProfiles::Files* files) {
  PrintMessage("hbmprof: no flight recording: ", reason);
  unlink(files->flight.c_str());
  files->flight.clear();
}

}  // namespace

absl::StatusOr<KeptProfiles::Files> KeptProfiles::Write(const std::string& bytes, const std::string& pattern,
                                                        const DefaultOptions& options) {
  const auto size = static_cast<int64_t>(bytes.size());
  const bool has_number = OutputPattern(pattern).has_number();
  if (has_number && size > options.dump_keep_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("its size of ", size, " bytes exceeds HBMPROF_DUMP_KEEP_BYTES (", options.dump_keep_bytes, ")"));
  }
  if (!HasFreeDisk(pattern, bytes.size())) {
    return absl::ResourceExhaustedError("less than 64 MiB of the disk would remain free");
  }
  Files files;
  const absl::Status status = WriteToPattern(pattern, static_cast<mode_t>(options.output_mode), bytes, &files.path);
  if (!status.ok()) return status;
  files.flight = SaveFlightBeside(files.path);
  const int64_t flight_size = SizeOf(files.flight);
  if (has_number && flight_size > options.dump_keep_bytes - size) {
    RemoveFlight(absl::StrCat("its ", flight_size, " bytes and the ", size,
                              " of the profile exceed HBMPROF_DUMP_KEEP_BYTES (", options.dump_keep_bytes, ")"),
                 &files);
  } else if (!files.flight.empty() && !HasFreeDisk(pattern, 0)) {
    RemoveFlight("less than 64 MiB of the disk would remain free", &files);
  }
  if (has_number) {
    const bool has_flight = !files.flight.empty();
    Keep({files, IdentityOf(files.path), has_flight ? IdentityOf(files.flight) : FileIdentity(),
          size + (has_flight ? flight_size : 0)},
         options);
  }
  return files;
}

void KeptProfiles::Keep(Profile profile, const DefaultOptions& options) {
  std::vector<Profile> removed;
  {
    MutexLock hold(mutex_);
    bytes_ += profile.bytes;
    profiles_.push_back(std::move(profile));
    while (profiles_.size() > static_cast<size_t>(options.dump_keep) || bytes_ > options.dump_keep_bytes) {
      bytes_ -= profiles_.front().bytes;
      removed.push_back(std::move(profiles_.front()));
      profiles_.pop_front();
    }
  }
  for (const Profile& old : removed) {
    const Files& files = old.files;
    if (IdentityOf(files.path) == old.identity) unlink(files.path.c_str());
    if (!files.flight.empty() && IdentityOf(files.flight) == old.flight_identity) unlink(files.flight.c_str());
  }
}

}  // namespace hbmprof::internal
