// See snapshot_contents.h.
#include "src/tool/torch/snapshot_contents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "src/base/write_all.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kBufferedEvents = 4096;

}  // namespace

std::string TemporaryFolder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();
}

absl::Status TorchEvents::Add(const TorchEvent& event) {
  if (size_ == UINT32_MAX) return absl::ResourceExhaustedError("the trace has more events than can be read");
  ++size_;
  buffer_.push_back(event);
  return buffer_.size() < kBufferedEvents ? absl::OkStatus() : Flush();
}

absl::Status TorchEvents::Flush() {
  const std::string folder = TemporaryFolder();
  if (file_.get() < 0) {
    std::string path = folder + "/hbmprof-XXXXXX";
    file_.Reset(mkostemp(path.data(), O_CLOEXEC));
    if (file_.get() < 0) {
      return absl::InternalError(Cat("cannot create a temporary file in ", folder, ": ", std::strerror(errno)));
    }
    unlink(path.c_str());
  }
  const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), buffer_.size() * sizeof(TorchEvent));
  if (const int error = internal::WriteAll(file_.get(), bytes); error != 0) {
    return absl::InternalError(Cat("cannot write a temporary file in ", folder, ": ", std::strerror(error),
                                   "; set TMPDIR to a folder with more space"));
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::StatusOr<bool> TorchEvents::Cursor::Next(TorchEvent* event) {
  while (next_ == buffer_.size()) {
    if (run_ == runs_->size()) return false;
    const Run& run = (*runs_)[run_];
    const size_t count = std::min<size_t>(kBufferedEvents, run.count - done_);
    if (count == 0) {
      ++run_;
      done_ = 0;
      continue;
    }
    buffer_.resize(count);
    next_ = 0;
    size_t read = 0;
    while (read < count * sizeof(TorchEvent)) {
      const ssize_t bytes = internal::RetryOnSignal([&] {
        return pread(events_->file_.get(), reinterpret_cast<char*>(buffer_.data()) + read,
                     count * sizeof(TorchEvent) - read,
                     static_cast<off_t>(size_t{run.first + done_} * sizeof(TorchEvent) + read));
      });
      if (bytes == 0) return absl::InternalError("a temporary file is shorter than written");
      if (bytes < 0) return absl::InternalError(Cat("cannot read a temporary file: ", std::strerror(errno)));
      read += static_cast<size_t>(bytes);
    }
    done_ += static_cast<uint32_t>(count);
  }
  *event = buffer_[next_++];
  return true;
}

}  // namespace hbmprof::tool
