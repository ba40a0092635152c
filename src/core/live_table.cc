#include "src/core/live_table.h"

#include <algorithm>

namespace hbmprof::internal {
namespace {

// Lines are 64 bytes for 1.5 records on average, so that three slots overflow rarely, and for at least half as many.
constexpr int64_t MostRecords(size_t lines) { return static_cast<int64_t>(lines + lines / 2); }
constexpr int64_t FewestRecords(size_t lines) { return MostRecords(lines) / 2; }
constexpr int kMostSplitsPerResize = 128;
constexpr size_t kOverflowLinesAtOnce = 64;

}  // namespace

LiveTable::~LiveTable() {
  for (size_t i = 0; i < kSegments; ++i) {
    UnmapPages(SegmentAt(i), SegmentLines(i) * sizeof(Line));
  }
}

LiveTable::Line* LiveTable::LockLineOf(uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (;;) {
    const Place place = PlaceOf(id);
    if (place.shape == 0) return nullptr;
    place.line->lock.Lock();
    // It may have become another one while this thread waited.
    if (PlaceOf(id).line == place.line) return place.line;
    place.line->lock.Unlock();
  }
}

LiveTable::Inserted LiveTable::InsertSlow(Line* first, uint64_t id, uint64_t record, uint64_t* replaced) {
  if (first == nullptr) {
    SpinLockHolder hold(resize_lock_);
    if (shape_.load(std::memory_order_relaxed) == 0) {
      if (!MapSegment(0)) return Inserted::kNoMemory;
      SetLines(kMinLines);
    }
    first = LockLineOf(id);
  }
  Inserted result = Inserted::kNew;
  Entry* free_entry = nullptr;
  Line* last = first;
  for (Line* line = first; line != nullptr; last = line, line = line->overflow) {
    for (Entry& entry : line->entries) {
      if (entry.id == id) {
        if (replaced != nullptr) {
          *replaced = entry.site_and_bytes;
          entry.site_and_bytes = record;
        }
        first->lock.Unlock();
        return Inserted::kReplaced;
      }
      if (entry.id == 0 && free_entry == nullptr) free_entry = &entry;
    }
  }
  if (free_entry == nullptr) {
    last->overflow = NewOverflowLine();
    if (last->overflow != nullptr) free_entry = &last->overflow->entries[0];
  }
  if (free_entry != nullptr) {
    *free_entry = {id, record};
  } else {
    result = Inserted::kNoMemory;
  }
  first->lock.Unlock();
  return result;
}

LiveTable::Entry* LiveTable::EntryIn(Line* first, uint64_t id) {
  for (Line* line = first; line != nullptr; line = line->overflow) {
    for (Entry& entry : line->entries) {
      if (entry.id == id) return &entry;
    }
  }
  return nullptr;
}

uint64_t LiveTable::EraseSlow(Line* first, uint64_t id) {
  uint64_t record = kNoRecord;
  if (Entry* entry = EntryIn(first, id); entry != nullptr) {
    record = entry->site_and_bytes;
    entry->id = 0;
    if (first->overflow != nullptr) Compact(first);
  }
  first->lock.Unlock();
  return record;
}

bool LiveTable::Find(uint64_t id, LiveRecord* record) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Line* first = LockLineOf(id);
  if (first == nullptr) return false;
  const Entry* entry = EntryIn(first, id);
  if (entry != nullptr) *record = Unpack(entry->site_and_bytes);
  first->lock.Unlock();
  return entry != nullptr;
}

bool LiveTable::Replace(uint64_t id, LiveRecord expected, LiveRecord desired) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Line* first = LockLineOf(id);
  if (first == nullptr) return false;
  Entry* entry = EntryIn(first, id);
  const bool is_it = entry != nullptr && entry->site_and_bytes == Pack(expected);
  if (is_it) entry->site_and_bytes = Pack(desired);
  first->lock.Unlock();
  return is_it;
}

void LiveTable::Compact(Line* first) {
  // Fill the holes of the chain with entries of later lines, then drop the lines that became empty.
  Line* hole_line = first;
  int hole = 0;
  const auto next_hole_before = [&](const Line* end) {
    while (hole_line != end && hole_line->entries[hole].id != 0) {
      if (++hole == kEntriesPerLine) {
        hole = 0;
        hole_line = hole_line->overflow;
      }
    }
  };
  for (Line* line = first->overflow; line != nullptr; line = line->overflow) {
    for (Entry& entry : line->entries) {
      if (entry.id == 0) continue;
      next_hole_before(line);
      if (hole_line == line) break;
      hole_line->entries[hole] = entry;
      entry.id = 0;
    }
  }
  Line* line = first;
  while (line != nullptr && line->overflow != nullptr) {
    Line* next = line->overflow;
    const bool empty =
        std::all_of(next->entries, next->entries + kEntriesPerLine, [](const Entry& entry) { return entry.id == 0; });
    if (!empty) {
      line = next;
      continue;
    }
    line->overflow = next->overflow;
    FreeOverflowLine(next);
  }
}

bool LiveTable::MoveInto(Line* first, const Entry& moved) {
  for (Line* line = first;; line = line->overflow) {
    for (Entry& entry : line->entries) {
      if (entry.id != 0) continue;
      entry = moved;
      return true;
    }
    if (line->overflow == nullptr) {
      line->overflow = NewOverflowLine();
      if (line->overflow == nullptr) return false;
    }
  }
}

bool LiveTable::MapSegment(size_t segment) {
  if (SegmentAt(segment) != nullptr) return true;
  void* lines = MapPages(SegmentLines(segment) * sizeof(Line));
  if (lines == nullptr) return false;
  origins_[segment].store(reinterpret_cast<uintptr_t>(lines) - SegmentStart(segment) * sizeof(Line),
                          std::memory_order_release);
  return true;
}

bool LiveTable::Split() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t lines = LinesOf(shape_.load(std::memory_order_relaxed));
  const size_t segment = SegmentOf(lines);
  if (segment >= kSegments || !MapSegment(segment)) return false;
  const size_t half = size_t{1} << (63 - __builtin_clzll(lines));
  Line* from = LineAt(lines - half);
  Line* to = LineAt(lines);
  SpinLockHolder hold_from(from->lock);
  SpinLockHolder hold_to(to->lock);
  for (Line* line = from; line != nullptr; line = line->overflow) {
    for (Entry& entry : line->entries) {
      if (entry.id == 0 || BucketOf(HashAddress(entry.id), ShapeOf(lines + 1)) != lines) continue;
      // Without memory for an overflow line the split is undone: what was moved goes back into the slots it left.
      if (!MoveInto(to, entry)) {
        for (Line* undo = to; undo != nullptr; undo = undo->overflow) {
          for (Entry& moved : undo->entries) {
            if (moved.id != 0) MoveInto(from, moved);
            moved.id = 0;
          }
        }
        return false;
      }
      entry.id = 0;
    }
  }
  if (from->overflow != nullptr) Compact(from);
  SetLines(lines + 1);
  return true;
}

bool LiveTable::Merge() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t lines = LinesOf(shape_.load(std::memory_order_relaxed)) - 1;  // afterwards
  const size_t half = size_t{1} << (63 - __builtin_clzll(lines));
  Line* to = LineAt(lines - half);
  Line* from = LineAt(lines);
  {
    SpinLockHolder hold_to(to->lock);
    SpinLockHolder hold_from(from->lock);
    for (Line* line = from; line != nullptr; line = line->overflow) {
      for (Entry& entry : line->entries) {
        if (entry.id == 0) continue;
        if (!MoveInto(to, entry)) {
          // What was moved already comes back; `from` has its slots still.
          for (Line* undo = to; undo != nullptr; undo = undo->overflow) {
            for (Entry& moved : undo->entries) {
              if (moved.id == 0 || BucketOf(HashAddress(moved.id), ShapeOf(lines + 1)) != lines) continue;
              MoveInto(from, moved);
              moved.id = 0;
            }
          }
          return false;
        }
        entry.id = 0;
      }
    }
    if (from->overflow != nullptr) Compact(from);
    SetLines(lines);
  }
  const size_t segment = SegmentOf(lines);
  if (segment > 0 && lines == SegmentStart(segment)) {
    // The whole segment is beyond the end. A thread that read an older shape_ may still lock one of its lines, see
    // that it is the wrong one, and unlock it: zeroing a lock that it holds would let it unlock somebody else's later.
    Line* start = LineAt(lines);
    for (size_t i = 0; i < SegmentLines(segment); ++i) start[i].lock.Lock();
    DiscardPages(start, SegmentLines(segment) * sizeof(Line));
  }
  return true;
}

void LiveTable::SetLines(size_t lines) {
  grow_above_.store(MostRecords(lines), std::memory_order_relaxed);
  shrink_below_.store(lines <= kMinLines ? INT64_MIN : FewestRecords(lines), std::memory_order_relaxed);
  shape_.store(ShapeOf(lines), std::memory_order_release);
}

bool LiveTable::ResizeSlow(int64_t records) {
  if (!resize_lock_.TryLock()) return false;
  bool has_memory = true;
  for (int i = 0; i < kMostSplitsPerResize && has_memory && !Fits(records); ++i) {
    has_memory = records > grow_above_.load(std::memory_order_relaxed) ? Split() : Merge();
  }
  resize_lock_.Unlock();
  return !has_memory || Fits(records);
}

LiveTable::Line* LiveTable::NewOverflowLine() {
  SpinLockHolder hold(overflow_lock_);
  if (free_overflow_ == nullptr) {
    auto address = reinterpret_cast<uintptr_t>(overflow_arena_.Allocate((kOverflowLinesAtOnce + 1) * sizeof(Line)));
    if (address == 0) return nullptr;
    auto* lines = reinterpret_cast<Line*>((address + alignof(Line) - 1) & ~(alignof(Line) - 1));
    for (size_t i = 0; i < kOverflowLinesAtOnce; ++i) {
      lines[i].overflow = free_overflow_;
      free_overflow_ = &lines[i];
    }
  }
  Line* line = free_overflow_;
  free_overflow_ = line->overflow;
  line->overflow = nullptr;
  return line;
}

void LiveTable::FreeOverflowLine(Line* line) {
  SpinLockHolder hold(overflow_lock_);
  line->overflow = free_overflow_;
  free_overflow_ = line;
}

void LiveTable::LockAll() {
  resize_lock_.Lock();
  overflow_lock_.Lock();
}

void LiveTable::UnlockAll() {
  overflow_lock_.Unlock();
  resize_lock_.Unlock();
}

void LiveTable::UnlockLinesInChild() {
  const size_t lines = LinesOf(shape_.load(std::memory_order_relaxed));
  for (size_t bucket = 0; bucket < lines; ++bucket) LineAt(bucket)->lock.Unlock();
}

void LiveTable::ClearInChild() {
  const size_t lines = LinesOf(shape_.load(std::memory_order_relaxed));
  for (size_t bucket = 0; bucket < lines; ++bucket) {
    Line* first = LineAt(bucket);
    while (first->overflow != nullptr) {
      Line* line = first->overflow;
      first->overflow = line->overflow;
      for (Entry& entry : line->entries) entry.id = 0;
      line->overflow = free_overflow_;
      free_overflow_ = line;
    }
  }
  for (size_t i = 0; i < kSegments; ++i) {
    Line* segment = SegmentAt(i);
    if (segment != nullptr) DiscardPages(segment, SegmentLines(i) * sizeof(Line));
  }
  if (lines != 0) SetLines(kMinLines);
  overflow_lock_.Unlock();
  resize_lock_.Unlock();
}

}  // namespace hbmprof::internal
