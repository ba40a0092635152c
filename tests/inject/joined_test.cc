// Programs that link hbmprof and are started with the injected library, on the fake driver: both libraries write the
// same profile, and its sums equal the driver's.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/tool/reader/reader.h"
#include "tests/support/control_socket.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

struct Started {
  std::string directory = NewDirectory();
  std::string injected_path = directory + "/injected.pb.gz";
  std::string own_path = directory + "/own.pb.gz";
  std::vector<std::string> environment;
  std::string preload = HBMPROF_INJECTED;

  CommandResult Start(std::vector<std::string> command) const {
    std::vector<std::string> all = environment;
    all.push_back("LD_PRELOAD=" + preload);
    all.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
    all.push_back("HBMPROF_GPU_OUTPUT=" + injected_path);
    return RunCommand(command, all, {"", 120});
  }
  CommandResult Case(const std::string& name) const {
    return Start({HBMPROF_INJECT_PROGRAMS "/inject_joined", name, own_path});
  }
  ProfileView Injected() const { return ViewProfile(injected_path); }
  ProfileView Own() const { return ViewProfile(own_path); }
};

// Returns the bytes that the driver has allocated, which the program prints.
int64_t DriversSum(const CommandResult& run) {
  const size_t at = run.out.find("driver ");
  return at == std::string::npos ? -1 : std::strtoll(run.out.c_str() + at + 7, nullptr, 10);
}

// Returns each sample as text.
std::multiset<std::string> Samples(const ProfileView& view) {
  std::multiset<std::string> all;
  for (const ProfileView::Sample& sample : view.samples) {
    std::string text;
    for (const std::string& function : sample.functions) text += function + " ";
    for (const auto& [key, value] : sample.labels) text += key + "=" + value + " ";
    for (const auto& [type, value] : sample.values) text += type + ":" + std::to_string(value) + " ";
    all.insert(text);
  }
  return all;
}

// Returns the comments except the one with the time and the one about host memory, which writing a profile changes.
std::multiset<std::string> Comments(const ProfileView& view) {
  std::multiset<std::string> all;
  for (const std::string& comment : view.comments) {
    const bool is_of_host = comment.rfind("tracker ", 0) == 0;
    const bool has_time = comment.rfind("hbmprof ", 0) == 0;
    if (!is_of_host && !has_time) all.insert(comment);
  }
  return all;
}

// Expects that the profiles are the same and that their sums for the GPU equal the driver's.
void ExpectOneAccount(const ProfileView& own, const ProfileView& injected, int64_t drivers_sum) {
  EXPECT_GT(own.samples.size(), 0u);
  EXPECT_EQ(Samples(own), Samples(injected));
  EXPECT_EQ(Comments(own), Comments(injected));
  const auto on_gpu = [](const ProfileView::Sample& sample) {
    const auto kind = sample.labels.find("kind");
    return sample.labels.at("device") == "GPU:0" && kind->second != "managed" && kind->second != "pinned_host";
  };
  EXPECT_EQ(own.Sum("inuse_space", on_gpu), drivers_sum);
  EXPECT_EQ(own.Comment("device GPU:0", "in_use"), std::to_string(drivers_sum));
  for (const char* key : {"foreign_frees", "replaced_records", "dropped_records"}) {
    EXPECT_EQ(own.Comment("tracker", key), "0") << key;
    EXPECT_EQ(injected.Comment("tracker", key), "0") << key;
  }
}

TEST(JoinedTest, ProgramTagsLabelDriverMemory) {
  const Started run;
  const CommandResult result = run.Case("tags");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const ProfileView injected = run.Injected();
  ExpectOneAccount(run.Own(), injected, DriversSum(result));
  EXPECT_EQ(injected.SumWhere("inuse_space", "phase", "load"), 11 * kMiB);
  EXPECT_EQ(injected.SumWhere("inuse_space", "phase", "decode"), 4 * kMiB);
  EXPECT_EQ(injected.SumWhere("inuse_space", "layer", "3"), 6 * kMiB);
  EXPECT_EQ(injected.Sum("inuse_space"), 31 * kMiB) << "another thread's is without";
}

TEST(JoinedTest, ScopedCallerBeginsStacksOfDriverMemory) {
  const Started run;
  const CommandResult result = run.Case("scope");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProfileView injected = run.Injected();
  ExpectOneAccount(run.Own(), injected, DriversSum(result));
  // By the innermost function: two allocations inside a wrapper, one without.
  std::map<std::string, int64_t> in_use;
  std::map<std::string, int64_t> reserved;
  for (const ProfileView::Sample& sample : injected.samples) {
    in_use[sample.functions.at(0)] += sample.values.at("inuse_space");
    reserved[sample.functions.at(0)] += sample.values.at("reserved_space");
  }
  EXPECT_EQ(reserved["user_of_wrapper"], 3 * kMiB);
  EXPECT_EQ(in_use["user_of_wrapper"], kMiB) << "the other allocation is a segment";
  EXPECT_EQ(in_use["scope_case"], kKiB) << "the block that user_of_wrapper records in its own scope";
  EXPECT_EQ(in_use.count("wrapper_takes"), 0u);
  EXPECT_GE(injected.Sum("inuse_space"), 7 * kMiB);
}

TEST(JoinedTest, StaticTagsLabelAllSamples) {
  Started run;
  run.environment = {"HBMPROF_TAGS=model=llama,phase=start"};
  const CommandResult result = run.Case("tags");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProfileView injected = run.Injected();
  ExpectOneAccount(run.Own(), injected, DriversSum(result));
  EXPECT_EQ(injected.SumWhere("inuse_space", "model", "llama"), 31 * kMiB);
  EXPECT_EQ(injected.SumWhere("inuse_space", "phase", "load"), 11 * kMiB);
  EXPECT_EQ(injected.SumWhere("inuse_space", "phase", "decode"), 4 * kMiB);
  EXPECT_EQ(injected.SumWhere("inuse_space", "phase", "start"), 16 * kMiB);
}

TEST(JoinedTest, ThreadsOfPoolsAreExact) {
  const Started run;
  const CommandResult result = run.Case("all");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const ProfileView own = run.Own();
  ExpectOneAccount(own, run.Injected(), DriversSum(result));
  // Each thread has 30 pages, two pools, the stream-ordered and the kept buffer, and mapped memory.
  EXPECT_EQ(DriversSum(result), 8 * (30 * 8 * kKiB + 2 * kMiB + 32 * kKiB + 64 * kKiB + 2 * kMiB));
  EXPECT_EQ(own.SumWhere("inuse_objects", "allocator", "pages"), 8 * 30);
  EXPECT_EQ(own.SumWhere("alloc_objects", "allocator", "pages"), 8 * 40) << "recorded by both, counted once";
  EXPECT_EQ(own.SumWhere("reserved_space", "worker", "3"), DriversSum(result) / 8 + kMiB + 3 * kKiB);
  EXPECT_EQ(own.SumWhere("inuse_space", "device", "sim:0"), 8 * 3 * kKiB);
  EXPECT_EQ(own.SumUnder("inuse_space", "user_records_block"), 8 * 8 * 16 * kKiB);
  EXPECT_EQ(own.SumWhere("inuse_space", "kind", "pool"), 8 * (4 * kMiB - 8 * 16 * kKiB - 10 * 4 * kKiB));
  EXPECT_EQ(own.SumWhere("inuse_space", "kind", "pinned_host"), 8 * kMiB);
  EXPECT_EQ(own.SumWhere("inuse_space", "allocator", "cudaMallocAsync"), 8 * 32 * kKiB);
  for (const ProfileView::Sample& sample : own.samples) {
    const auto allocator = sample.labels.find("allocator");
    if (allocator != sample.labels.end() && allocator->second == "pages") {
      EXPECT_EQ(sample.functions[0], "user_allocates") << "neither the driver's wrapper nor what forwards";
    }
    if (sample.Has("user_records_block")) {
      EXPECT_EQ(sample.functions[0], "user_records_block");
    }
    EXPECT_EQ(sample.labels.count("counter"), 0u);
  }
  const auto counter = [](const ProfileView& view) {
    return std::count_if(view.comments.begin(), view.comments.end(), [](const std::string& comment) {
      return comment.find("requests") != std::string::npos && comment.find("17") != std::string::npos;
    });
  };
  EXPECT_EQ(counter(own), 1);
  EXPECT_EQ(counter(run.Injected()), 1);
}

TEST(JoinedTest, RecordingHasDriverMemory) {
  using hbmprof::internal::RecordedEvent;
  using hbmprof::internal::RecordedKind;
  Started run;
  const CommandResult result = run.Case("recording");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto reader = hbmprof::internal::RecordingReader::Open(run.own_path + ".hbmrec");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->is_complete()) << (*reader)->problem();
  const hbmprof::internal::RecordingTables& tables = (*reader)->tables();
  std::multiset<int64_t> allocated;
  int marks = 0;
  RecordedEvent event;
  RecordedEvent failure;
  while ((*reader)->Next(&event)) {
    if (event.kind == RecordedKind::kAlloc) allocated.insert(event.bytes);
    if (event.kind == RecordedKind::kFailed) failure = event;
    if (event.kind == RecordedKind::kMark) marks += tables.marks[event.id].name == run.own_path + ".mark" ? 1 : 0;
  }
  EXPECT_EQ(allocated, (std::multiset<int64_t>{77, 2 * kMiB}));
  EXPECT_EQ(marks, 1);
  ASSERT_EQ(failure.bytes, 123);
  ASSERT_LT(failure.site, tables.sites.size());
  const uint64_t pc = tables.names.stacks[tables.sites[failure.site].stack].return_addresses.at(0);
  EXPECT_EQ(tables.functions.at(pc - 1).name, "user_fails");
}

TEST(JoinedTest, EveryProfilerFunctionIsForwarded) {
  const CommandResult result = Started().Case("functions");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(JoinedTest, ForkedChildIsOff) {
  Started run;
  run.injected_path = run.directory + "/injected.%p.pb.gz";
  run.environment = {"HBMPROF_OUTPUT=" + run.directory + "/own.%p.pb.gz"};
  const CommandResult result = run.Case("forks");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  int profiles = 0;
  for (const auto& file : std::filesystem::directory_iterator(run.directory)) {
    profiles += file.path().filename().string().rfind("injected.", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(profiles, 1) << "that of the parent";
  ExpectOneAccount(run.Own(), run.Own(), DriversSum(result));
}

TEST(JoinedTest, SignalHandlerCanRecord) {
  const Started run;
  const CommandResult result = run.Case("signals");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectOneAccount(run.Own(), run.Injected(), DriversSum(result));
}

TEST(JoinedTest, ExitProfilesAgree) {
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early);
    Started run;
    const std::string at_exit = run.directory + "/exit.pb.gz";
    run.environment = {"HBMPROF_OUTPUT=" + at_exit};
    if (early) run.environment.push_back("JOINED_EARLY=1");
    const CommandResult result = run.Case("exit");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    const ProfileView own = ViewProfile(at_exit);
    EXPECT_EQ(Samples(own), Samples(run.Injected()));
    EXPECT_EQ(own.SumWhere("inuse_space", "phase", "early"), early ? 77 : 0);
    EXPECT_EQ(own.Sum("inuse_space"), kMiB + (early ? 77 : 0)) << "before the destructor that frees";
    EXPECT_EQ(own.Sum("alloc_space"), kMiB + (early ? 77 : 0));
    EXPECT_NE(run.Injected().Comment("device GPU:0", "unaccounted"), "") << "the driver still answered at exit";
  }
}

TEST(JoinedTest, ExitProfileHasTheStateOfTheInjectedLibrarys) {
  Started run;
  const std::string at_exit = run.directory + "/exit.pb.gz";
  run.environment = {"HBMPROF_OUTPUT=" + at_exit};
  const CommandResult result = run.Case("exit_between");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run.Injected().Sum("inuse_space"), kMiB);
  EXPECT_EQ(Samples(ViewProfile(at_exit)), Samples(run.Injected()));
}

TEST(JoinedTest, BlockAfterAPauseIsCounted) {
  const Started run;
  RunningProgram program({HBMPROF_INJECT_PROGRAMS "/inject_joined", "pause"},
                         {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                          "HBMPROF_GPU_OUTPUT=" + run.injected_path, "HBMPROF_SOCKET_DIR=" + run.directory});
  ASSERT_EQ(program.ReadLine(), "ready");
  const std::string socket = run.directory + "/hbmprof." + std::to_string(program.pid()) + ".sock";
  hbmprof_test::ControlAnswer(socket, "tracking off");
  hbmprof_test::ControlAnswer(socket, "tracking on");
  program.WriteLine("");
  EXPECT_EQ(program.ReadLine(), "in use " + std::to_string(2 * kKiB));
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(run.Injected().Sum("inuse_space"), 2 * kKiB);
}

TEST(JoinedTest, LateLibraryAndSeveralCopiesJoin) {
  for (const bool program_links : {false, true}) {
    SCOPED_TRACE(program_links);
    Started run;
    // The recording is started once, although several libraries start the injected one.
    run.environment = {"HBMPROF_RECORD=" + run.directory + "/%n.hbmrec"};
    const std::string program = program_links ? "/inject_late_linked" : "/inject_late";
    const CommandResult result = run.Start({HBMPROF_INJECT_PROGRAMS + program, HBMPROF_JOINED_LIBRARY, run.own_path});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    const ProfileView own = run.Own();
    ExpectOneAccount(own, run.Injected(), DriversSum(result));
    EXPECT_EQ(own.Sum("inuse_space"), 2 * kMiB);
    EXPECT_EQ(own.SumUnder("inuse_space", "user_records"), kMiB + kKiB);
    EXPECT_EQ(own.SumUnder("reserved_space", "program_allocates"), kMiB) << "a segment now";
    EXPECT_EQ(own.SumWhere("inuse_space", "copy", "program's"), program_links ? kMiB + kKiB : 0);
    EXPECT_TRUE(std::filesystem::exists(run.directory + "/0.hbmrec"));
  }
}

#ifdef HBMPROF_PJRT_HOST
TEST(JoinedTest, PjrtPluginStaysSeparate) {
  Started run;
  run.environment = {"HBMPROF_PJRT_PLUGIN=" HBMPROF_FAKE_PJRT};
  const CommandResult result = run.Start({HBMPROF_PJRT_HOST, HBMPROF_INJECTED_PJRT, run.own_path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run.Own().Sum("inuse_space"), 4096);
  EXPECT_NE(access(run.injected_path.c_str(), F_OK), 0) << "nothing of the driver's was recorded";
}
#endif

TEST(JoinedTest, OtherVersionIsNotJoined) {
  Started run;
  run.preload = HBMPROF_OTHER_VERSION ":" HBMPROF_INJECTED;
  const CommandResult result = run.Case("tags");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("another version of hbmprof than libhbmprof_gpu.so"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(run.Own().Sum("inuse_space"), 0);
  EXPECT_EQ(run.Injected().Sum("inuse_space"), 31 * kMiB);
}

}  // namespace
