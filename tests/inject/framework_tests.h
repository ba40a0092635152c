// Expectations on profiles that the tests of the frameworks' allocators share.
#ifndef HBMPROF_TESTS_INJECT_FRAMEWORK_TESTS_H_
#define HBMPROF_TESTS_INJECT_FRAMEWORK_TESTS_H_

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace hbmprof_test {

inline bool IsBlockOf(const std::string& framework, const ProfileView::Sample& sample) {
  const auto allocator = sample.labels.find("allocator");
  return allocator != sample.labels.end() && allocator->second == framework && sample.labels.at("kind") == "device";
}

// Returns whether the stack has one of the user's functions of framework_pool.h.
inline bool IsFromUser(const ProfileView::Sample& sample) {
  return sample.Has("load_weights") || sample.Has("make_activation") || sample.Has("grow_kv_cache") ||
         sample.Has("take_workspace") || sample.Has("copy_input");
}

inline void ExpectNoWarning(const ProfileView& view) {
  EXPECT_THAT(view.comments, ::testing::Not(::testing::Contains(::testing::HasSubstr("warning"))));
  for (const char* key : {"foreign_frees", "replaced_records", "dropped_records", "truncated_stacks"}) {
    EXPECT_EQ(view.Comment("tracker", key), "0") << key;
  }
}

// Expects that `hbmprof diff` shows the leak. `before` is a profile of the case "serve", `after` one of the case
// "leak".
inline void ExpectLeakOfKvCache(const std::string& tool, const std::string& before, const std::string& after) {
  const CommandResult diff =
      RunCommand({tool, "diff", "--exact", "--cum", "-w", "kind=device", "-n", "0", before, after});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out, ::testing::HasSubstr("inuse_space: +393216 B"));
  EXPECT_THAT(diff.out,
              ::testing::ContainsRegex("\n +0 B +0.00% +\\+393216 B +[0-9.]+% +0 B +393216 B +grow_kv_cache "));
  for (const char* function : {"load_weights", "make_activation", "take_workspace", "copy_input"}) {
    EXPECT_THAT(diff.out, ::testing::Not(::testing::HasSubstr(function))) << "has not changed";
  }
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_INJECT_FRAMEWORK_TESTS_H_
