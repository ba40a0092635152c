// The memory of the ranks of a distributed run, compared row by row.
#ifndef HBMPROF_SRC_TOOL_SUMS_RANKS_H_
#define HBMPROF_SRC_TOOL_SUMS_RANKS_H_

#include "src/tool/sums/sums.h"

namespace hbmprof::tool {

struct ComparedRanks {
  struct Rank {
    std::string name;  // RankOf
    int64_t total = 0;
    std::vector<std::string> files;
  };
  // The labels and the name are those of the rows of one rank; the position is that of all of them.
  struct Row : Sums::Row {
    int64_t median = 0;  // of an even number of ranks: the lower one of the two in the middle
    // Indices of ranks, and their values. Of equal values, that of the first rank.
    std::pair<size_t, int64_t> smallest, largest;
    std::pair<size_t, int64_t> outlier;  // has the value that is farthest from the median
    size_t rank_count = 0;               // ranks whose value is not 0
    // How far the outlier is from the median, beyond what is usual among the ranks; at least 0.
    int64_t distance = 0;
  };
  std::vector<Rank> ranks;  // by number, then by name
  std::vector<Row> rows;    // the largest distance first, then the largest range
};

// Compares the sample type `type` of the ranks. The files of one rank are added up. The samples must have the label of
// LabelRanks. `grouping`: the rows of one rank.
ComparedRanks CompareRanks(const ProfileSet& profiles, size_t type, Grouping grouping);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_RANKS_H_
