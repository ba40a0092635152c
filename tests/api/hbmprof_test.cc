// The functions of hbmprof.h.

#include "hbmprof/hbmprof.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/profile_checker.h"

// A function whose name the tests look for in the profile.
[[gnu::noinline]] void AllocateForTheTest(const void* buffer) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.RecordAlloc(buffer, 4096, {profiler.Device("hbmprof_test:0"), hbmprof::MemoryKind::kDevice, {}});
  asm volatile("" ::: "memory");  // no jump instead of the call
}

namespace hbmprof {
namespace {

using ::hbmprof_test::CheckProfile;
using ::hbmprof_test::ParseProfile;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::ReadProfile;
using ::testing::HasSubstr;

TEST(DeviceMemoryProfile, NamesTheFunctionThatAllocates) {
  const int buffer = 0;
  AllocateForTheTest(&buffer);
  const absl::StatusOr<std::string> bytes = device_memory_profile();
  Profiler::Default().RecordFree(&buffer);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto profile = ParseProfile(*bytes);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "hbmprof_test:0"), 4096);
  EXPECT_EQ(view.SumUnder("inuse_space", "AllocateForTheTest"), 4096);
  for (const ProfileView::Sample& sample : view.samples) {
    if (sample.values.at("inuse_space") != 4096) continue;
    EXPECT_THAT(sample.functions[0], HasSubstr("AllocateForTheTest")) << "none of our own frames are on top";
  }
}

TEST(SetCounter, EachProfileHasTheLastValue) {
  SetCounter("requests", 10);
  SetCounter("tokens out", -3);
  SetCounter("requests", 1200);
  const absl::StatusOr<std::string> bytes = device_memory_profile();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto profile = ParseProfile(*bytes);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  EXPECT_EQ(view.Comment("counter requests", "value"), "1200");
  EXPECT_EQ(view.Comment("counter tokens%20out", "value"), "-3");
}

TEST(SetCounter, IgnoresNamesBeyondTheLimit) {
  Profiler profiler;
  for (int i = 0; i < 100; ++i) profiler.SetCounter("counter" + std::to_string(i), i);
  profiler.SetCounter("counter5", 55);
  const Snapshot snapshot = profiler.TakeSnapshot();
  EXPECT_EQ(snapshot.counters.size(), 64u);
  for (const auto& [name, value] : snapshot.counters) {
    EXPECT_EQ(value, name == "counter5" ? 55 : std::stoi(name.substr(7)));
  }
}

TEST(SaveDeviceMemoryProfile, ReplacesPercentPInThePath) {
  const std::string directory = ::testing::TempDir();
  ASSERT_TRUE(save_device_memory_profile(directory + "/hbmprof_api_%p.pb.gz").ok());
  const std::string path = directory + "/hbmprof_api_" + std::to_string(getpid()) + ".pb.gz";
  const auto profile = ReadProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(CheckProfile(*profile), "");
  std::remove(path.c_str());
}

TEST(SaveDeviceMemoryProfile, ErrorHasTheCauseAndThePath) {
  const absl::Status missing = save_device_memory_profile("/nowhere/at/all/profile.pb.gz");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere/at/all/profile.pb.gz"));
  EXPECT_EQ(save_device_memory_profile("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(save_device_memory_profile("/tmp").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hbmprof
