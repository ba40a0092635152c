// The ages of the buffers of a call site, as a profile holds them (docs/spec/profile.md).
#ifndef HBMPROF_SRC_TOOL_PROFILE_AGES_H_
#define HBMPROF_SRC_TOOL_PROFILE_AGES_H_

#include "proto/profile.pb.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

struct Ages {
  // Live buffers by their time of birth. Element i has those born from (first_class + i) << class_width_log2 seconds
  // after the start of the process on, for 1 << class_width_log2 seconds. Both lists have the same length.
  int class_width_log2 = 0;
  int64_t first_class = 0;
  std::vector<int64_t> born_bytes;
  std::vector<int64_t> born_counts;
  // Freed buffers: element i counts those that became 2^i to 2^(i+1) seconds old, the 24th also older ones. Younger
  // ones are not counted: their number is the number of freed buffers minus the sum.
  std::vector<int64_t> freed_by_octave;

  Ages() = default;
  // REQUIRES: ParseProfile has accepted the profile.
  explicit Ages(const pprof::Ages& message);
  void Write(pprof::Ages* message) const;

  bool empty() const { return born_counts.empty() && freed_by_octave.empty(); }
  // Makes the classes wider: neighbours are added up. `log2` is not below class_width_log2.
  void Widen(int log2);
  // Adds the buffers of `other`. The result has the wider classes of both.
  void Add(const Ages& other);
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_AGES_H_
