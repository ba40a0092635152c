// RecordingCursor reads the events of a recording in order of time, and the driver's samples between them.
#ifndef HBMPROF_SRC_TOOL_RECORDING_CURSOR_H_
#define HBMPROF_SRC_TOOL_RECORDING_CURSOR_H_

#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

using internal::AccountOf;
using internal::DriverSample;
using internal::LostEvents;
using internal::RecordedEvent;
using internal::RecordedKind;
using internal::RecordedPools;
using internal::RecordingReader;
using internal::RecordingState;
using internal::RecordingTables;
using internal::Unaccounted;

// A recording has one position: two cursors of the same recording must not be used in turns.
class RecordingCursor {
 public:
  // Begins at the start. Shows the progress of each pass over the events on stderr if that is a terminal.
  explicit RecordingCursor(RecordingReader& recording) : recording_(recording) { Rewind(); }

  bool Next(RecordedEvent* event) {
    if (!recording_.Next(event)) return false;
    if (++count_ % kStep == 0) progress_->Advance(kStep);
    return true;
  }
  int64_t count() const { return count_; }
  // Returns the next sample whose time is at most `time`; null if there is none.
  const DriverSample* NextSample(int64_t time) {
    const std::vector<DriverSample>& samples = recording_.samples();
    return next_sample_ < samples.size() && samples[next_sample_].time <= time ? &samples[next_sample_++] : nullptr;
  }
  void Rewind() {
    recording_.Rewind();
    count_ = 0;
    next_sample_ = 0;
    progress_.emplace(static_cast<size_t>(recording_.event_count()), "events read");
  }

 private:
  static constexpr int64_t kStep = 1 << 14;

  RecordingReader& recording_;
  std::optional<Progress> progress_;
  int64_t count_ = 0;
  size_t next_sample_ = 0;
};

// Returns the last driver sample up to `time`, or null.
inline const DriverSample* SampleAt(const RecordingReader& recording, int64_t time) {
  const std::vector<DriverSample>& samples = recording.samples();
  const auto after =
      absl::c_upper_bound(samples, time, [](int64_t t, const DriverSample& sample) { return t < sample.time; });
  return after == samples.begin() ? nullptr : &*(after - 1);
}

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_CURSOR_H_
