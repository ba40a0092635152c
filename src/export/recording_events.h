// The events of a recording as bytes. docs/recording.md describes them.
#ifndef HBMPROF_SRC_EXPORT_RECORDING_EVENTS_H_
#define HBMPROF_SRC_EXPORT_RECORDING_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/ledger/recorded_event.h"
#include "src/export/recording.h"
#include "src/export/recording_format.h"

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

// The numbers of elements to which events may refer.
struct EventLimits {
  size_t accounts = 0;
  size_t sites = 0;
  size_t threads = 0;
  size_t tag_sets = 0;
  size_t marks = 0;
};

// Returns whether the references and the values of an event are valid.
bool IsValidEvent(const RecordedEvent& event, const EventLimits& limits);

// Reads one run.
class RunReader {
 public:
  // Reads the header of a run from `block`, and moves `block` to the end of the run. `block`'s bytes, `sites` and
  // `limits` must outlive the object.
  RunReader(ByteReader* block, const std::vector<uint32_t>& sites, const EventLimits& limits);

  // Reads the next event. Returns false at the end of the run, or if the run is damaged.
  bool Next(RecordedEvent* event);
  bool is_damaged() const { return is_damaged_; }
  // The number of events that are not read yet.
  uint64_t left() const { return left_; }

 private:
  bool Read(RecordedEvent* event);

  EventPrediction prediction_;
  const EventLimits* limits_;
  uint64_t left_;
  int64_t time_;
  int id_shift_;
  uint16_t thread_ = 0;
  bool is_damaged_ = false;
  ByteReader flags_{{}}, times_{{}}, site_numbers_{{}}, ids_{{}}, bytes_{{}}, threads_{{}};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_RECORDING_EVENTS_H_
