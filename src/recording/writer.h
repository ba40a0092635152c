// RecordingWriter: writes a recording to a file.
#ifndef HBMPROF_SRC_RECORDING_WRITER_H_
#define HBMPROF_SRC_RECORDING_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/descriptor.h"
#include "src/core/ledger/recorded_event.h"
#include "src/recording/events.h"
#include "src/recording/format.h"
#include "src/recording/recording.h"
#include "src/recording/tables.h"

namespace hbmprof::internal {

// Writes a recording. One thread at a time. An object whose method has failed (disk full, ...) writes nothing further:
// later calls return the same error. After a failed write the file ends with its last whole block. Throws only
// std::bad_alloc.
//
// Events and samples are collected in memory, about 256 KiB of each, before they are compressed and written.
class RecordingWriter {
 public:
  // Creates the file. An existing file is replaced and keeps its permissions; a new one has the permissions 0600.
  // Errors: those of WritePprof.
  // If `must_be_new`, kAlreadyExists if any file has this name.
  static absl::StatusOr<std::unique_ptr<RecordingWriter>> Create(const std::string& path, bool must_be_new = false);

  // Writes the elements of `tables` that the file does not have yet. `tables` must begin with the elements of the
  // previous call. The elements must be written before the events that refer to them.
  absl::Status AddTables(const RecordingTables& tables);
  // `events` are of one shard, whole changes (the last event has is_continued false), in order of their times. If an
  // event is earlier than the previous one or belongs to the same change, the time of the previous event is written for
  // it. REQUIRES: times are not negative, bytes are 0 to kMaxEventBytes, and the events refer to elements that the
  // tables have. A reader takes anything else for damage.
  absl::Status AddEvents(const RecordedEvent* events, size_t count);
  absl::Status AddSample(const DriverSample& sample);
  absl::Status AddLost(const LostEvents& lost);
  // States that the times of all events that follow are later than `time`, and writes the collected blocks to the file,
  // so they are not lost if the process is killed.
  // REQUIRES: the events since the last call are within kMaxUnflushedBytes, because a reader holds them in memory.
  absl::Status Flush(int64_t time);
  // Writes the end block. A file with this block is complete.
  absl::Status Finish(int64_t end_time);
  // Bytes of the file so far.
  int64_t size() const { return size_; }

 private:
  // The contents of a block that is not written yet.
  struct Pending {
    BlockType type;
    uint32_t count = 0;  // of events or samples
    int64_t time = 0;    // of the latest one
    uint32_t runs = 0;
    std::string contents = {};
  };

  RecordingWriter(std::string path, FileDescriptor* file);
  // Writes the pending blocks, and a block without contents.
  absl::Status WriteAllAnd(BlockType type, int64_t time);
  bool WritePending(Pending* pending);
  bool WriteBlock(BlockType type, std::string_view contents, uint32_t count, int64_t time);

  const std::string path_;
  FileDescriptor file_;
  int64_t size_ = kFileHeaderBytes;
  absl::Status status_;  // of the last failure
  TablesWriter tables_;
  RunWriter runs_{tables_.sites()};
  Pending events_{BlockType::kEvents};
  Pending samples_{BlockType::kSamples};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_WRITER_H_
