// The memory of each call stack in all ranks of a distributed run.
#ifndef HBMPROF_SRC_TOOL_SUMS_RANK_TABLE_H_
#define HBMPROF_SRC_TOOL_SUMS_RANK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// Takes profiles one after the other, and keeps only their values by row. Not thread-safe.
class RankTable {
 public:
  struct Rank {
    // The number of the process in the run; if only its number on its host is known, "HOST/NUMBER"; else the path of
    // the profile.
    std::string name;
    int64_t total = 0;
    std::vector<std::string> files;
  };
  struct Row {
    std::vector<std::string> labels;  // of `by`
    // The indices of the frames in Result::frames, innermost first. All stacks written out can be too large for memory.
    const uint64_t* frames = nullptr;
    size_t frame_count = 0;
    int64_t median = 0;  // of an even number of ranks: the lower one of the two in the middle
    // Indices of ranks, and their values. Of equal values, that of the first rank.
    std::pair<size_t, int64_t> smallest, largest;
    std::pair<size_t, int64_t> outlier;  // has the value that is farthest from the median
    size_t rank_count = 0;               // ranks whose value is not 0
    // How far the outlier is from the median, minus kNoise times the median of these distances of all ranks; at least
    // 0.
    int64_t distance = 0;
  };

  // Rows are made by the values of these labels, and by call stack if `by_stack` is true.
  RankTable(std::vector<std::string> by, bool by_stack) : by_(std::move(by)), by_stack_(by_stack) {}

  // Adds the values of the sample type with this index of all files.
  void Add(const ProfileSet& profiles, size_t type);

  struct Result {
    std::vector<Rank> ranks;  // by number, then by name
    std::vector<Row> rows;    // the largest distance first, then the largest range
    size_t left_out = 0;      // files: earlier profiles of a process of which there is a later one
    int64_t world_size = 0;   // the number of ranks of the run; 0: not known
    std::vector<ProfileSet::ShownFrame> frames;
    ListTable keys;  // holds Row::frames
  };
  // Combines what was added. The files of one rank are added up; but of one process, only the latest file counts. To be
  // called once.
  Result Take();

 private:
  // Values of ranks differ a little for many reasons. A rank that is within this factor of the median distance is not
  // conspicuous.
  static constexpr int64_t kNoise = 5;

  struct File {
    std::string path;
    std::string process;  // its host, process id and rank; "" if they are not known
    std::string rank;
    int64_t time_nanos = 0;
  };
  struct Value {
    uint32_t file;
    int64_t value;
  };

  uint32_t FrameOf(const ProfileSet::ShownFrame& frame);
  uint32_t TextOf(const std::string& text);
  // Fills in the figures of the row from the values by rank.
  static void Judge(const std::vector<int64_t>& values, Row* row);

  const std::vector<std::string> by_;
  const bool by_stack_;
  std::vector<File> files_;
  int64_t world_size_ = 0;
  absl::flat_hash_map<std::string, uint32_t> texts_;
  std::vector<std::string> text_list_;
  absl::flat_hash_map<std::string, uint32_t> frame_numbers_;
  std::vector<ProfileSet::ShownFrame> frames_;
  ListTable rows_;                          // the numbers of the texts of the labels, then those of the frames
  std::vector<std::vector<Value>> values_;  // by row
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_RANK_TABLE_H_
