// Adds the profiles of several processes up to one, as pprof's merge does.
#ifndef HBMPROF_SRC_TOOL_PROFILE_MERGE_H_
#define HBMPROF_SRC_TOOL_PROFILE_MERGE_H_

#include "proto/profile.pb.h"
#include "src/tool/profile/profile_reader.h"

namespace hbmprof::tool {

// Collects samples. Equal stacks with equal labels become one sample. Not thread-safe.
class ProfileMerger {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Adds the values and the ages of the samples of `profile`. Adds the labels `added` to each sample; a label of the
  // same name that it already has becomes exported_NAME. The first profile defines the sample types; a type that a
  // later profile does not have counts as 0 in it. The result has the latest time, and the comments of the profiles,
  // those on the totals of a device only if `is_only`: there is no other profile. Error: kInvalidArgument if a sample
  // type has another unit than in the first profile.
  absl::Status Add(const RawProfile& profile, const Labels& added, bool is_only = false);

  // Returns the result, compressed. Leaves out samples whose values are all 0. To be called once. Error:
  // kResourceExhausted (no memory).
  absl::StatusOr<std::string> Take();

 private:
  class Adder;

  pprof::Profile result_;
  StringTable texts_{result_};
  // The entries of the result by their serialized contents without the id.
  absl::flat_hash_map<std::string, uint64_t> mappings_;
  absl::flat_hash_map<std::string, uint64_t> functions_;
  absl::flat_hash_map<std::string, uint64_t> locations_;
  absl::flat_hash_map<std::string, int> samples_;  // by their contents without the values
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_MERGE_H_
