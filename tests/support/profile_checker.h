// Reading profiles: parsing, the structural check that every profile must pass, and a view with resolved indices. Not
// in this file: running pprof (pprof_tool.h).
#ifndef HBMPROF_TESTS_SUPPORT_PROFILE_CHECKER_H_
#define HBMPROF_TESTS_SUPPORT_PROFILE_CHECKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/profile.pb.h"

namespace hbmprof_test {

using Profile = hbmprof::pprof::Profile;

// Decompresses and parses. Errors: kInvalidArgument if the data is not gzip, is cut short, has bytes after its end, or
// is not a Profile; ReadProfile also kNotFound.
absl::StatusOr<Profile> ParseProfile(std::string_view gzip_bytes);
absl::StatusOr<Profile> ReadProfile(const std::string& path);

// Returns the first error in the profile, as a sentence that names its position, or "". Makes the checks of the
// strictest known readers (docs/spec/profile.md), and checks the guarantees that this project gives for its profiles.
std::string CheckProfile(const Profile& profile);

// The profile as text, one line per sample, mapping and comment, with every index resolved; for golden files.
std::string DescribeProfile(const Profile& profile);

// A profile with its indices resolved. It must have passed CheckProfile.
struct ProfileView {
  struct Sample {
    std::vector<std::string> functions;         // innermost first; "" where an address has no name
    std::vector<std::string> modules;           // the file that each of them is in, without its folder
    std::map<std::string, std::string> labels;  // numbers as decimal text
    std::map<std::string, int64_t> values;      // by sample type, such as "inuse_space"

    bool Has(std::string_view function) const;
    // Returns whether a frame of the stack is in a file whose name starts with `start`.
    bool HasModule(std::string_view start) const;
  };

  explicit ProfileView(const Profile& profile);

  int64_t Sum(const std::string& type) const;
  int64_t Sum(const std::string& type, const std::function<bool(const Sample&)>& selects) const;
  // Return the sum over the samples with this label, or with this function anywhere in their stack.
  int64_t SumWhere(const std::string& type, const std::string& label, const std::string& value) const;
  int64_t SumUnder(const std::string& type, std::string_view function) const;
  // The value of `key` in the first comment that starts with `start`: Comment("tracker", "dropped_records"). "" if
  // there is none.
  std::string Comment(std::string_view start, std::string_view key) const;

  std::vector<Sample> samples;
  std::vector<std::string> comments;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_PROFILE_CHECKER_H_
