#include "src/export/recording_events.h"

#include <algorithm>

namespace hbmprof::internal {
namespace {

// The bits of a flag byte. The lowest four are the kind.
constexpr uint8_t kKindBits = 0x0F;
constexpr uint8_t kContinued = 0x10;
constexpr uint8_t kOtherThread = 0x20;  // a thread number follows in its column
constexpr uint8_t kOtherBytes = 0x40;   // the bytes are not the predicted ones and follow in their column
constexpr uint8_t kLater = 0x80;        // the time is later than that of the event before, and follows in its column
static_assert(kRecordedKinds <= kKindBits + 1);

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

RunReader::RunReader(ByteReader* block, const std::vector<uint32_t>& sites, const EventLimits& limits)
    : prediction_(sites), limits_(&limits) {
  left_ = block->Varint();
  time_ = block->Signed();
  const uint64_t shift = block->Varint();
  if (shift > 63) block->Fail();
  id_shift_ = static_cast<int>(shift & 63);
  uint64_t sizes[5];
  for (uint64_t& size : sizes) size = block->Varint();
  flags_ = ByteReader(block->Bytes(left_));
  ByteReader* const columns[] = {&times_, &site_numbers_, &ids_, &bytes_, &threads_};
  for (int i = 0; i < 5; ++i) *columns[i] = ByteReader(block->Bytes(sizes[i]));
  if (time_ < 0) block->Fail();
  if (block->ok()) return;
  left_ = 0;
  is_damaged_ = true;
}

bool RunReader::Next(RecordedEvent* event) {
  if (left_ == 0 || is_damaged_) return false;
  --left_;
  is_damaged_ = !Read(event);
  return !is_damaged_;
}

bool RunReader::Read(RecordedEvent* event) {
  const auto flags = static_cast<uint8_t>(flags_.Fixed(1));
  const int kind = flags & kKindBits;
  if (kind >= kRecordedKinds) return false;
  event->kind = static_cast<RecordedKind>(kind);
  if ((flags & kLater) != 0) {
    if (prediction_.last().is_continued) return false;
    const uint64_t difference = times_.Varint();
    if (difference > static_cast<uint64_t>(INT64_MAX - time_)) return false;
    time_ += static_cast<int64_t>(difference);
  }
  event->time = time_;
  event->site = HasSite(event->kind) ? static_cast<uint32_t>(site_numbers_.Varint()) - 1 : kNoRecordedSite;
  if (HasBuffer(event->kind)) {
    uint64_t& last = prediction_.IdOf(event->site);
    last += static_cast<uint64_t>(ids_.Signed()) << id_shift_;
    event->id = last;
  } else {
    event->id = ids_.Varint();
  }
  event->bytes = (flags & kOtherBytes) != 0 ? bytes_.Signed() : prediction_.BytesOf(event->kind, event->site);
  if ((flags & kOtherThread) != 0) thread_ = static_cast<uint16_t>(std::min<uint64_t>(threads_.Varint(), UINT16_MAX));
  event->thread = thread_;
  event->is_continued = (flags & kContinued) != 0 && left_ != 0;
  prediction_.SetLast(*event);
  const bool is_whole = times_.ok() && site_numbers_.ok() && ids_.ok() && bytes_.ok() && threads_.ok();
  return is_whole && IsValidEvent(*event, *limits_);
}

bool IsValidEvent(const RecordedEvent& event, const EventLimits& limits) {
  if (event.thread >= limits.threads || event.time < 0) return false;
  if (event.bytes > kMaxEventBytes || event.bytes < 0) return false;
  switch (event.kind) {
    case RecordedKind::kFailed:
      return event.id < limits.accounts && (event.site < limits.sites || event.site == kNoRecordedSite);
    case RecordedKind::kTags:
      return event.id < limits.tag_sets;
    case RecordedKind::kResetPeak:
      return event.id < limits.accounts;
    case RecordedKind::kMark:
      return event.id < limits.marks;
    default:
      return event.site < limits.sites;
  }
}

}  // namespace hbmprof::internal
