#include "src/recording/writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/atomic_file.h"
#include "src/base/write_all.h"

namespace hbmprof::internal {
namespace {

constexpr size_t kPendingBytes = 256 << 10;
constexpr size_t kEventsPerRun = 16384;

}  // namespace

RecordingWriter::RecordingWriter(std::string path, FileDescriptor* file)
    : path_(std::move(path)), file_(file->Release()) {}

absl::Status RecordingWriter::AddTables(const RecordingTables& tables) {
  if (!status_.ok()) return status_;
  for (const std::string& contents : tables_.NewElements(tables)) {
    if (!WriteBlock(BlockType::kTables, contents, 0, 0)) return status_;
  }
  return absl::OkStatus();
}

absl::Status RecordingWriter::AddEvents(const RecordedEvent* events, size_t count) {
  if (!status_.ok()) return status_;
  while (count > 0) {
    size_t run = std::min(count, kEventsPerRun);
    while (run < count && events[run - 1].is_continued) ++run;
    const int64_t time = runs_.Append(events, run, &events_.contents);
    events_.time = events_.count == 0 ? time : std::max(events_.time, time);
    events_.count += static_cast<uint32_t>(run);
    ++events_.runs;
    events += run;
    count -= run;
    if (events_.contents.size() >= kPendingBytes || events_.runs >= kMaxRunsPerBlock) WritePending(&events_);
  }
  return status_;
}

absl::Status RecordingWriter::AddSample(const DriverSample& sample) {
  if (!status_.ok()) return status_;
  samples_.contents += SampleBytes(sample);
  ++samples_.count;
  samples_.time = sample.time;
  if (samples_.contents.size() >= kPendingBytes) WritePending(&samples_);
  return status_;
}

absl::Status RecordingWriter::AddLost(const LostEvents& lost) {
  if (status_.ok()) WriteBlock(BlockType::kLost, LostBytes(lost), 0, lost.to);
  return status_;
}

absl::Status RecordingWriter::Flush(int64_t time) { return WriteAllAnd(BlockType::kFlush, time); }

absl::Status RecordingWriter::Finish(int64_t end_time) {
  if (!WriteAllAnd(BlockType::kEnd, end_time).ok()) return status_;
  const int descriptor = file_.Release();
  // On a network file system, close(2) reports write errors.
  const int error = close(descriptor) == 0 || errno == EINTR ? 0 : errno;
  status_ = absl::FailedPreconditionError("cannot write " + path_ + ": the recording has ended");
  return error == 0 ? absl::OkStatus() : (status_ = WriteFailure(path_, "close", error));
}

absl::Status RecordingWriter::WriteAllAnd(BlockType type, int64_t time) {
  if (!status_.ok()) return status_;
  if (!WritePending(&events_) || !WritePending(&samples_)) return status_;
  WriteBlock(type, "", 0, time);
  return status_;
}

bool RecordingWriter::WritePending(Pending* pending) {
  if (!status_.ok()) return false;
  if (pending->contents.empty()) return true;
  const bool is_written = WriteBlock(pending->type, pending->contents, pending->count, pending->time);
  pending->contents.clear();
  pending->count = 0;
  pending->runs = 0;
  return is_written;
}

bool RecordingWriter::WriteBlock(BlockType type, std::string_view contents, uint32_t count, int64_t time) {
  const absl::StatusOr<std::string> block = MakeBlock(type, contents, count, time);
  if (!block.ok()) {
    status_ =
        absl::Status(block.status().code(), "cannot write " + path_ + ": " + std::string(block.status().message()));
    return false;
  }
  if (const int error = WriteAll(file_.get(), *block); error != 0) {
    status_ = WriteFailure(path_, "write", error);
    // A reader would report a block that is not whole as damage.
    static_cast<void>(!ftruncate(file_.get(), size_));
    return false;
  }
  size_ += static_cast<int64_t>(block->size());
  return true;
}

absl::StatusOr<std::unique_ptr<RecordingWriter>> RecordingWriter::Create(const std::string& path, bool must_be_new) {
  FileDescriptor file;
  FileRules rules;
  rules.keep_open = &file;
  rules.must_be_new = must_be_new;
  if (absl::Status status = WriteFileAtomically(path, FileHeaderBytes(), rules); !status.ok()) return status;
  return std::unique_ptr<RecordingWriter>(new RecordingWriter(path, &file));
}

}  // namespace hbmprof::internal
