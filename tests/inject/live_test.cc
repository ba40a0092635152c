// The control channel, the triggers and the out-of-memory report of an injected program, with the double of NVML. Each
// test runs ends_program.cc.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_socket.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::ControlAnswer;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::Metric;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr int64_t kMiB = 1 << 20;

class LiveTest : public ::testing::Test {
 protected:
  std::vector<std::string> Environment(std::vector<std::string> more = {}) const {
    more.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE);
    more.push_back("LD_PRELOAD=" HBMPROF_INJECTED);
    more.push_back("HBMPROF_GPU_OUTPUT=" + directory_ + "/exit.pb.gz");
    more.push_back("HBMPROF_SOCKET_DIR=" + sockets_);
    return more;
  }
  std::string Query(const RunningProgram& program, const std::string& request) const {
    return ControlAnswer(sockets_ + "/hbmprof." + std::to_string(program.pid()) + ".sock", request);
  }
  static void HoldOneMore(const RunningProgram& program) {
    program.WriteLine("");
    EXPECT_EQ(program.ReadLine(), "held");
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = NewDirectory();
};

TEST_F(LiveTest, MetricsHaveTheUuidOfTheGpu) {
  RunningProgram program({HBMPROF_INJECT_ENDS, "lines"}, Environment());
  EXPECT_EQ(program.ReadLine(), "held");
  EXPECT_THAT(Query(program, "metrics"),
              HasSubstr("\nhbmprof_device_memory_bytes{device=\"GPU:0\",gpu_uuid=\"GPU-fa4e0000-0000-4000-8000-"
                        "000000000001\",kind=\"device\"} 1048576\n"));
  const std::string stats = Query(program, "stats");
  EXPECT_THAT(stats, HasSubstr("\"uuid\":\"GPU-fa4e0000-0000-4000-8000-000000000001\""));
  EXPECT_THAT(stats, HasSubstr("{\"process_id\":1,\"bytes\":123456789,\"is_this\":false}"));
  EXPECT_THAT(stats, HasSubstr("{\"process_id\":" + std::to_string(program.pid()) + ",\"bytes\":"));
  EXPECT_EQ(program.Wait(), 0);
}

// Otherwise what the program prints could get into the answer.
TEST_F(LiveTest, ConnectionGetsNoStandardDescriptor) {
  RunningProgram program({"/bin/sh", "-c", "exec \"$@\" 2>&-", "sh", HBMPROF_INJECT_ENDS, "lines"}, Environment());
  EXPECT_EQ(program.ReadLine(), "held");
  Query(program, "metrics");
  HoldOneMore(program);
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(LiveTest, TrackingCanBePaused) {
  RunningProgram program({HBMPROF_INJECT_ENDS, "lines"}, Environment());
  EXPECT_EQ(program.ReadLine(), "held");
  Query(program, "tracking off");
  HoldOneMore(program);
  EXPECT_EQ(Metric(Query(program, "metrics"), "hbmprof_device_memory_in_use_bytes"), kMiB) << "what was there before";
  Query(program, "tracking on");
  EXPECT_EQ(Metric(Query(program, "metrics"), "hbmprof_device_memory_in_use_bytes"), 0);
  HoldOneMore(program);
  const std::string metrics = Query(program, "metrics");
  EXPECT_EQ(Metric(metrics, "hbmprof_device_memory_in_use_bytes"), kMiB);
  EXPECT_EQ(Metric(metrics, "hbmprof_device_memory_peak_bytes"), kMiB);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(ViewProfile(directory_ + "/exit.pb.gz").Sum("inuse_space"), kMiB);
}

TEST_F(LiveTest, TriggerWritesAProfileInTheFolder) {
  const std::string errors = NewDirectory() + "/errors";
  RunningProgram program({HBMPROF_INJECT_ENDS, "lines"}, Environment({"HBMPROF_DUMP=1"}), errors);
  EXPECT_EQ(program.ReadLine(), "held");
  const std::string path = directory_ + "/hbmprof.dump." + std::to_string(program.pid()) + ".0.pb.gz";
  for (int i = 0; i < 1000 && access(path.c_str(), F_OK) != 0; ++i) usleep(10'000);
  EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), kMiB);
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(LiveTest, OutOfMemoryReportListsOtherProcesses) {
  const std::string errors = NewDirectory() + "/errors";
  RunningProgram program({HBMPROF_INJECT_ENDS, "too_much"}, Environment({"HBMPROF_OOM_OUTPUT=off"}), errors);
  EXPECT_EQ(program.Wait(), 0);
  std::ifstream file(errors);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, MatchesRegex("hbmprof: out of memory on GPU:0: cuMemAlloc_v2 of 3.00 GiB failed\n(.*\n)*"
                                 "  process    117.74 MiB of process 1( \\(.*\\))?\n"
                                 "  in use by library, largest first:\n(.*\n)*"
                                 "  in use by call stack, largest first:\n(.*\n)*"));
}

}  // namespace
