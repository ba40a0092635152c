// RecordingInMemory: a recording that is not read from a file.
#ifndef HBMPROF_SRC_TOOL_READER_RECORDING_IN_MEMORY_H_
#define HBMPROF_SRC_TOOL_READER_RECORDING_IN_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/tool/reader/reader.h"

namespace hbmprof::internal {

// The class that derives from it fills in its members, as reader.h demands.
class RecordingInMemory : public RecordingReader {
 public:
  const RecordingTables& tables() const override { return tables_; }
  const std::vector<DriverSample>& samples() const override { return samples_; }
  const std::vector<LostEvents>& lost() const override { return lost_; }
  bool is_complete() const override { return true; }
  const std::string& problem() const override { return problem_; }
  int64_t end_time() const override { return end_time_; }
  int64_t event_count() const override { return static_cast<int64_t>(events_.size()); }
  bool Next(RecordedEvent* event) override {
    if (next_ == events_.size()) return false;
    *event = events_[next_++];
    return true;
  }
  void Rewind() override { next_ = 0; }

 protected:
  RecordingTables tables_;
  std::vector<DriverSample> samples_;
  std::vector<LostEvents> lost_;
  std::vector<RecordedEvent> events_;
  std::string problem_;
  int64_t end_time_ = 0;

 private:
  size_t next_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_TOOL_READER_RECORDING_IN_MEMORY_H_
