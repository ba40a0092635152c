// RecordingReader: reads a recording (src/recording).
#ifndef HBMPROF_SRC_TOOL_READER_READER_H_
#define HBMPROF_SRC_TOOL_READER_READER_H_

#include "src/core/ledger/recorded_event.h"
#include "src/recording/recording.h"
#include "src/tool/util/common.h"

namespace hbmprof::internal {

inline bool IsReport(std::string_view mark) { return mark.substr(0, kReportMark.size()) == kReportMark; }
// Returns the name of a mark, with what it is: "profile exit", "report out of memory: cuMemAlloc_v2", "recording off".
inline std::string MarkText(const std::string& mark) {
  return (IsReport(mark) ? "report " : mark == kOffMark ? "" : "profile ") + mark;
}
// Whether a live buffer begins or ends with the event.
inline bool Begins(RecordedKind kind) { return kind == RecordedKind::kAlloc || kind == RecordedKind::kMoveTo; }
inline bool Ends(RecordedKind kind) { return kind == RecordedKind::kFree || kind == RecordedKind::kMoveFrom; }

// Reads a recording. Memory: the tables, and the events between two Flush calls. One thread at a time.
class RecordingReader {
 public:
  // Opens a file and reads everything except the events. Blocks that are added to the file later are not read. The
  // reading ends at the first block that is not whole or whose tables do not continue those before it; a block with
  // wrong contents is left out. If the end block is missing or not read, the recording ends at its last flush, because
  // later events may be there of some shards only. Without a flush it has no events. Errors,
  // with the path: kNotFound, kPermissionDenied, kInvalidArgument (not a recording, or of another version), kDataLoss
  // (no block is readable), kInternal (any other error of the system).
  static absl::StatusOr<std::unique_ptr<RecordingReader>> Open(const std::string& path);
  virtual ~RecordingReader() = default;

  // They are complete before the first call of Next: they contain every element to which an event refers. Every
  // reference in them is valid.
  const RecordingTables& tables() const { return tables_; }
  const std::vector<DriverSample>& samples() const { return samples_; }  // in order of time
  const std::vector<LostEvents>& lost() const { return lost_; }
  bool is_complete() const { return is_complete_; }  // Finish was called
  // Describes the first damage, and where the reading ended because of damage; empty if no damage is found. Messages
  // print it after the path and a colon. Damage inside a block may be found only while the events are read.
  const std::string& problem() const { return problem_; }
  // If the recording is complete, the latest of the start and of all events, samples, Flush and Finish calls. Otherwise
  // the time of the last flush, or of the start. No event or sample is later.
  int64_t end_time() const { return end_time_; }
  // Next returns at most this number of events.
  virtual int64_t event_count() const = 0;

  // Stores the next event, in the order of time; the parts of one change come one after the other. Returns false at
  // the end. References to sites, threads, tag sets and marks are valid.
  virtual bool Next(RecordedEvent* event) = 0;
  virtual void Rewind() = 0;

 protected:
  RecordingTables tables_;
  std::vector<DriverSample> samples_;
  std::vector<LostEvents> lost_;
  bool is_complete_ = false;
  std::string problem_;
  int64_t end_time_ = 0;
};

// A recording that is not read from a file. The class that derives from it fills in the members.
class RecordingInMemory : public RecordingReader {
 public:
  RecordingInMemory() { is_complete_ = true; }
  int64_t event_count() const override { return static_cast<int64_t>(events_.size()); }
  bool Next(RecordedEvent* event) override {
    if (next_ == events_.size()) return false;
    *event = events_[next_++];
    return true;
  }
  void Rewind() override { next_ = 0; }

 protected:
  std::vector<RecordedEvent> events_;

 private:
  size_t next_ = 0;
};

// Returns whether the first bytes of a file are those of a recording, of any version.
bool IsRecording(std::string_view first_bytes);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_TOOL_READER_READER_H_
