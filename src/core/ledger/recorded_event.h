// RecordedEvent: one change of the ledger, as a recording stores it (docs/spec/recording.md).
//
// An event of the program (an allocation, a free, a resize) is one or more RecordedEvents with the same time. All of
// them but the last have `is_continued`. The state of the ledger is defined after the last one only.
#ifndef HBMPROF_SRC_CORE_LEDGER_RECORDED_EVENT_H_
#define HBMPROF_SRC_CORE_LEDGER_RECORDED_EVENT_H_

#include <cstdint>

namespace hbmprof::internal {

enum class RecordedKind : uint8_t {
  kAlloc,     // a buffer of `bytes` bytes was allocated at `site`
  kFree,      // that buffer was freed
  kMoveFrom,  // the live buffer `id` of `bytes` bytes leaves `site`; its allocation no longer counts there
  kMoveTo,    // the same buffer, with `bytes` bytes from now on, belongs to `site`; follows its kMoveFrom
  // An allocation of `bytes` bytes failed in the account with number `id` (see kResetPeak). `site` is kNoRecordedSite
  // if it is not known.
  kFailed,
  kTags,       // the thread's tags are those with number `id` (RecordingTables::tag_sets) from now on; no site
  kResetPeak,  // the peak of the account with number `id` (device * kMemorySpaceCount + space) is reset; no site
  kMark,       // such as a snapshot for a profile at this instant; `id` is the number of the mark; no site
};
inline constexpr int kRecordedKinds = 8;
inline constexpr uint32_t kNoRecordedSite = UINT32_MAX;

struct RecordedEvent {
  int64_t time = 0;  // nanoseconds of CLOCK_MONOTONIC
  uint64_t id = 0;   // of the buffer (BufferId::value()), or of the block (Pools::IdOfBlock)
  int64_t bytes = 0;
  uint32_t site = kNoRecordedSite;
  uint16_t thread = 0;  // number of the thread in the recording (RecordingTables::threads)
  RecordedKind kind = RecordedKind::kAlloc;
  // The next event belongs to the same change and has the same time. Next: in the same EventBuffer, or in the same run
  // of the recording.
  bool is_continued = false;
};
static_assert(sizeof(RecordedEvent) == 32);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_RECORDED_EVENT_H_
