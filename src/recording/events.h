// The events of a recording as bytes. docs/spec/recording.md describes them.
#ifndef HBMPROF_SRC_RECORDING_EVENTS_H_
#define HBMPROF_SRC_RECORDING_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/ledger/recorded_event.h"

namespace hbmprof::internal {

// Predicts values of the next event of a run from the events before it. Writer and reader make the same predictions, so
// a value that is predicted is not written.
class EventPrediction {
 public:
  explicit EventPrediction(const std::vector<uint32_t>& sites) : sites_(sites) {}

  // The bytes of an event of this kind and site.
  int64_t BytesOf(RecordedKind kind, uint32_t site) const;
  // The id of an event of this site.
  uint64_t& IdOf(uint32_t site) { return ids_[site < sites_.size() ? static_cast<size_t>(sites_[site] != 0) : 0]; }
  // Must be called after each event.
  void SetLast(const RecordedEvent& event);
  const RecordedEvent& last() const { return last_; }

 private:
  static constexpr uint32_t kSizes = 128;

  const std::vector<uint32_t>& sites_;
  RecordedEvent last_;
  int64_t sizes_[kSizes] = {};  // by the number of the site modulo kSizes: of its last event
  uint64_t ids_[2] = {};        // of the last event of a site, and of a site of blocks
};

inline bool HasSite(RecordedKind kind) {
  return kind != RecordedKind::kTags && kind != RecordedKind::kResetPeak && kind != RecordedKind::kMark;
}
// Returns whether `id` is the id of a buffer. For other kinds, `id` is the number of another element.
inline bool HasBuffer(RecordedKind kind) { return HasSite(kind) && kind != RecordedKind::kFailed; }

// The bits of the flag byte of an event. The lowest four are the kind.
inline constexpr uint8_t kKindBits = 0x0F;
inline constexpr uint8_t kContinued = 0x10;
inline constexpr uint8_t kOtherThread = 0x20;  // a thread number follows in its column
inline constexpr uint8_t kOtherBytes = 0x40;   // the bytes are not the predicted ones and follow in their column
inline constexpr uint8_t kLater = 0x80;  // the time is later than that of the event before, and follows in its column
static_assert(kRecordedKinds <= kKindBits + 1);

// Writes runs. A run is a sequence of events in order of their times.
class RunWriter {
 public:
  explicit RunWriter(const std::vector<uint32_t>& sites) : sites_(sites) {}

  // Appends a run of `count` > 0 events to `out`. Returns the time of its last event.
  int64_t Append(const RecordedEvent* events, size_t count, std::string* out);

 private:
  const std::vector<uint32_t>& sites_;
  // The columns of a run. They are members so that their memory is used again.
  std::string flags_, times_, site_numbers_, ids_, bytes_, threads_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_EVENTS_H_
