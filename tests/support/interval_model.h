// A naive model of pools: how every unit of an address range is counted. It keeps all segments and blocks in one list
// and checks each unit separately. A unit belongs to the block that covers it. Without a block, it belongs to the
// innermost segment that covers it, if there is one. Copies are independent.
#ifndef HBMPROF_TESTS_SUPPORT_INTERVAL_MODEL_H_
#define HBMPROF_TESTS_SUPPORT_INTERVAL_MODEL_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hbmprof_test {

class IntervalModel {
 public:
  static constexpr int kTags = 8;
  struct Interval {
    int start;
    int end;  // one past the last unit
    int tag;
    bool is_segment;
    bool has_block_id;  // the end of the pool around it ends it too
  };
  // The units that each tag holds.
  struct Held {
    std::array<int64_t, kTags> blocks{};
    std::array<int64_t, kTags> idle{};
  };

  explicit IntervalModel(int units) : units_(units) {}

  int units() const { return units_; }
  size_t size() const { return intervals_.size(); }
  const Interval& operator[](size_t i) const { return intervals_[i]; }
  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  const Held& held() const { return held_; }
  const Held& held_at_peak() const { return held_at_peak_; }
  // The units of the outermost segments.
  int64_t pool_units() const {
    int64_t sum = 0;
    for (size_t i = 0; i < size(); ++i) {
      if (intervals_[i].is_segment && DepthOf(i) == 0) sum += intervals_[i].end - intervals_[i].start;
    }
    return sum;
  }
  int64_t idle_units() const {
    int64_t sum = 0;
    for (const int64_t units : held_.idle) sum += units;
    return sum;
  }

  // Each of these functions is one event.
  void Add(const Interval& interval) {
    intervals_.push_back(interval);
    Look();
  }
  // The blocks and segments in a segment are removed with it.
  void Remove(size_t i) {
    std::vector<Interval> left;
    for (size_t j = 0; j < size(); ++j) {
      const bool inside = intervals_[i].is_segment && intervals_[i].start <= intervals_[j].start &&
                          intervals_[j].end <= intervals_[i].end && (!intervals_[j].is_segment || IsInside(j, i));
      if (j != i && !inside) left.push_back(intervals_[j]);
    }
    intervals_ = left;
    Look();
  }
  void MakeSegment(size_t i) {
    // A later element of the list is the inner one.
    Interval segment = intervals_[i];
    segment.is_segment = true;
    intervals_.erase(intervals_.begin() + static_cast<ptrdiff_t>(i));
    Add(segment);
  }
  // Blocks and segments that lie inside the part that is cut off a segment end with it.
  void SetEnd(size_t i, int end) {
    const Interval was = intervals_[i];
    intervals_[i].end = end;
    std::vector<Interval> left;
    for (const Interval& other : intervals_) {
      if (was.is_segment && end <= other.start && other.end <= was.end) continue;
      left.push_back(other);
    }
    intervals_ = left;
    Look();
  }
  void Split(size_t i, int at) {
    Interval high = intervals_[i];
    high.start = at;
    intervals_[i].end = at;
    intervals_.insert(intervals_.begin() + static_cast<ptrdiff_t>(i) + 1, high);
    Look();
  }
  void Merge(size_t first, size_t second) {
    intervals_[first].end = intervals_[second].end;
    intervals_.erase(intervals_.begin() + static_cast<ptrdiff_t>(second));
    Look();
  }
  void ResetPeak() {
    peak_ = in_use_;
    held_at_peak_ = held_;
  }

  // Returns whether segment or block i is in segment j. Of two equal segments, the later one is the inner one.
  bool IsInside(size_t i, size_t j) const {
    const Interval& inner = intervals_[i];
    const Interval& outer = intervals_[j];
    if (!outer.is_segment || i == j || inner.start < outer.start || outer.end < inner.end) return false;
    return !inner.is_segment || inner.start != outer.start || inner.end != outer.end || i > j;
  }
  int DepthOf(size_t segment) const {
    int depth = 0;
    for (size_t i = 0; i < size(); ++i) depth += IsInside(segment, i) ? 1 : 0;
    return depth;
  }
  int SegmentsAt(int unit) const {
    int segments = 0;
    for (const Interval& interval : intervals_) {
      segments += interval.is_segment && interval.start <= unit && unit < interval.end ? 1 : 0;
    }
    return segments;
  }
  // Returns the number of segments at the first unit of a block, but at least 1.
  int LevelOf(size_t block) const { return std::max(SegmentsAt(intervals_[block].start), 1); }
  // Returns the number of pairs of segments with the same range. Which of the two is the inner one is only known if the
  // inner one was a block before.
  int EqualSegments() const {
    int pairs = 0;
    for (size_t i = 0; i < size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Interval& one = intervals_[i];
        const Interval& other = intervals_[j];
        pairs += one.is_segment && other.is_segment && one.start == other.start && one.end == other.end ? 1 : 0;
      }
    }
    return pairs;
  }
  // Returns whether a program can have made this state: segments nest, blocks do not overlap each other, and each unit
  // of a block is in LevelOf(block) segments or in none.
  bool IsSound() const {
    for (size_t i = 0; i < size(); ++i) {
      const Interval& one = intervals_[i];
      if (one.start < 0 || one.end > units_ || one.start >= one.end) return false;
      for (size_t j = 0; j < size(); ++j) {
        const Interval& other = intervals_[j];
        if (i == j || one.end <= other.start || other.end <= one.start) continue;
        if (one.is_segment && other.is_segment && !IsInside(i, j) && !IsInside(j, i)) return false;
        if (!one.is_segment && !other.is_segment) return false;
      }
      for (int unit = one.start; unit < one.end && !one.is_segment; ++unit) {
        const int segments = SegmentsAt(unit);
        if (segments != 0 && segments != LevelOf(i)) return false;
      }
    }
    return true;
  }

 private:
  void Look() {
    held_ = {};
    in_use_ = 0;
    for (int unit = 0; unit < units_; ++unit) {
      size_t owner = size();
      for (size_t i = 0; i < size(); ++i) {
        const Interval& interval = intervals_[i];
        if (unit < interval.start || interval.end <= unit) continue;
        if (owner == size() || !interval.is_segment || (intervals_[owner].is_segment && IsInside(i, owner))) owner = i;
      }
      if (owner == size()) continue;
      const Interval& interval = intervals_[owner];
      ++in_use_;
      ++(interval.is_segment ? held_.idle : held_.blocks)[static_cast<size_t>(interval.tag)];
    }
    if (in_use_ > peak_) ResetPeak();
  }

  int units_;
  std::vector<Interval> intervals_;
  Held held_;
  Held held_at_peak_;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_INTERVAL_MODEL_H_
