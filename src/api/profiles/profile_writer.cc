#include "src/api/profiles/profile_writer.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>

#include "hbmprof/profiler.h"
#include "src/api/recording/recording.h"
#include "src/base/message.h"

namespace hbmprof::internal {
namespace {

constexpr uint64_t kFreeDiskBytes = uint64_t{64} << 20;
constexpr char kFullDisk[] = "less than 64 MiB of the disk would remain free";

// Returns whether kFreeDiskBytes of the file system of the directory of `pattern` remain free after a file of `bytes`
// bytes is written. Returns true if the system does not say.
bool HasFreeDisk(const std::string& pattern, size_t bytes) {
  const std::string path = OutputPattern(pattern).Path(0);
  const size_t slash = path.rfind('/');
  struct statvfs info;
  if (statvfs(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), &info) != 0) return true;
  return uint64_t{info.f_bavail} * info.f_frsize >= kFreeDiskBytes + bytes;
}

}  // namespace

void KeptProfiles::Add(const ProfileFiles& files, size_t most) {
  profiles_.push_back({File{files.path, IdentityOf(files.path)}, File{files.flight, IdentityOf(files.flight)}});
  while (profiles_.size() > most) {
    for (const File& file : profiles_.front()) {
      if (!file.path.empty() && IdentityOf(file.path) == file.identity) unlink(file.path.c_str());
    }
    profiles_.pop_front();
  }
}

absl::StatusOr<ProfileFiles> WriteProfile(const absl::StatusOr<std::string>& bytes, const ProfilePlace& place) {
  if (!bytes.ok()) return bytes.status();
  const DefaultOptions options = Profiler::OptionsOfDefault();
  const bool is_kept = place.kept != nullptr;
  if ((is_kept || place.leaves_space) && !HasFreeDisk(place.pattern, bytes->size())) {
    return absl::ResourceExhaustedError(kFullDisk);
  }
  ProfileFiles files;
  const absl::Status status = place.file != nullptr ? place.file->Write(*bytes, place.is_last, &files.path)
                                                    : WriteToPattern(place.pattern, options.output_mode,
                                                                     place.must_be_new, *bytes, &files.path);
  if (!status.ok()) return status;
  if (place.has_flight) files.flight = SaveFlightBeside(files.path);
  if (is_kept && !files.flight.empty() && !HasFreeDisk(place.pattern, 0)) {
    PrintMessage("hbmprof: no flight recording: ", kFullDisk);
    unlink(files.flight.c_str());
    files.flight.clear();
  }
  if (is_kept && OutputPattern(place.pattern).has_number()) {
    place.kept->Add(files, static_cast<size_t>(options.dump_keep));
  }
  return files;
}

}  // namespace hbmprof::internal
