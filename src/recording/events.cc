#include "src/recording/events.h"

#include "src/recording/format.h"

namespace hbmprof::internal {
namespace {

// The number of zero bits at the end of all differences between the ids of `events`.
int IdShift(const RecordedEvent* events, size_t count, EventPrediction prediction) {
  uint64_t differences = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!HasBuffer(events[i].kind)) continue;
    uint64_t& last = prediction.IdOf(events[i].site);
    differences |= events[i].id - last;
    last = events[i].id;
  }
  return differences == 0 ? 0 : __builtin_ctzll(differences);
}

}  // namespace

int64_t EventPrediction::BytesOf(RecordedKind kind, uint32_t site) const {
  return HasSite(kind) && site != kNoRecordedSite ? sizes_[site % kSizes] : 0;
}

void EventPrediction::SetLast(const RecordedEvent& event) {
  last_ = event;
  if (HasSite(event.kind) && event.site != kNoRecordedSite) sizes_[event.site % kSizes] = event.bytes;
}

int64_t RunWriter::Append(const RecordedEvent* events, size_t count, std::string* out) {
  for (std::string* column : {&flags_, &times_, &site_numbers_, &ids_, &bytes_, &threads_}) column->clear();
  ByteWriter times(&times_), site_numbers(&site_numbers_), ids(&ids_), bytes(&bytes_), threads(&threads_);
  EventPrediction prediction(sites_);
  const int id_shift = IdShift(events, count, prediction);
  int64_t time = events[0].time;
  uint16_t thread = 0;
  for (size_t i = 0; i < count; ++i) {
    const RecordedEvent& event = events[i];
    auto flags = static_cast<uint8_t>(event.kind);
    if (event.is_continued) flags |= kContinued;
    if (event.time > time && !prediction.last().is_continued) {
      flags |= kLater;
      times.Varint(static_cast<uint64_t>(event.time - time));
      time = event.time;
    }
    if (HasSite(event.kind)) site_numbers.Varint(uint32_t{event.site + 1});
    if (HasBuffer(event.kind)) {
      uint64_t& last = prediction.IdOf(event.site);
      ids.Signed(static_cast<int64_t>(event.id - last) >> id_shift);
      last = event.id;
    } else {
      ids.Varint(event.id);
    }
    if (event.bytes != prediction.BytesOf(event.kind, event.site)) {
      flags |= kOtherBytes;
      bytes.Signed(event.bytes);
    }
    if (event.thread != thread) {
      flags |= kOtherThread;
      threads.Varint(event.thread);
      thread = event.thread;
    }
    flags_ += static_cast<char>(flags);
    prediction.SetLast(event);
  }
  ByteWriter run(out);
  run.Varint(count);
  run.Signed(events[0].time);
  run.Varint(static_cast<uint64_t>(id_shift));
  for (const std::string* column : {&times_, &site_numbers_, &ids_, &bytes_, &threads_}) run.Varint(column->size());
  for (const std::string* column : {&flags_, &times_, &site_numbers_, &ids_, &bytes_, &threads_}) out->append(*column);
  return time;
}

}  // namespace hbmprof::internal
