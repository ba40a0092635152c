// The report and the profile of a program that runs out of device memory: on the simulated device
// (out_of_memory_program.cc), on the fake driver under the injected library, and on the fake PJRT plugin.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/sanitized.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::kSanitized;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class OutOfMemoryTest : public ::testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
    arguments.insert(arguments.begin(), HBMPROF_OUT_OF_MEMORY_PROGRAM);
    return RunProgram(arguments, environment);
  }

  CommandResult RunProgram(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
    const CommandResult run = RunCommand(command, environment, {directory_, 0});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, "done\n");
    return run;
  }

  static int ReportsIn(const std::string& text) {
    int count = 0;
    for (size_t at = 0; (at = text.find("hbmprof: out of memory on", at)) != std::string::npos; ++at) ++count;
    // A profile that takes long is named later, in lines that are no report.
    for (size_t at = 0; (at = text.find(", as reported before:", at)) != std::string::npos; ++at) --count;
    return count;
  }

  const std::string directory_ = NewDirectory();
};

TEST_F(OutOfMemoryTest, IsReportedWithHoldersAndGrowth) {
  const CommandResult run = Run({"full"});
  EXPECT_THAT(run.err, MatchesRegex("hbmprof: out of memory on sim:0: Allocate of 32.00 MiB failed \\(phase=decode\\)\n"
                                    "  verdict    the device is full: .* hold 48.00 MiB of 64.00 MiB\\.\n"
                                    "  device     64.00 MiB in all, 16.00 MiB free, largest free block 16.00 MiB\n"
                                    "  recorded   48.00 MiB of this process, peak 48.00 MiB.*\n"
                                    "  requested by .* < main\n"
                                    "  in use by call stack, largest first, with the change since the last profile:\n"
                                    "   32.00 MiB  66.7 %        2 live    \\+16.00 MiB  .*GrowCache < main\n"
                                    "   16.00 MiB  33.3 %        1 live          \\+0 B  .*LoadWeights < main\n"
                                    "  more       with HBMPROF_OOM_OUTPUT=.*\n"));
  EXPECT_EQ(FilesIn(directory_).size(), 1u) << "only before.pb.gz";
}

TEST_F(OutOfMemoryTest, WritesProfileToRequestedPath) {
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz"});
  EXPECT_THAT(run.err, EndsWith("\n  profile    oom.0.pb.gz\n  more       hbmprof top oom.0.pb.gz\n"));
  EXPECT_EQ(ViewProfile(directory_ + "/oom.0.pb.gz").Sum("inuse_space"), 48 << 20);
}

TEST_F(OutOfMemoryTest, SaysWhyNoProfileWasWritten) {
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=missing/oom.pb.gz"});
  EXPECT_THAT(run.err, HasSubstr("\n  profile    none: "));
  EXPECT_THAT(run.err, HasSubstr("missing"));
}

TEST_F(OutOfMemoryTest, ProfileOnASlowDiskIsWrittenBeforeTheProcessEnds) {
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz", "SLOW_DISK_MILLIS=1000"});
  EXPECT_THAT(run.err, HasSubstr("\n  profile    the disk is slow: a later line names the profile\n"));
  EXPECT_THAT(run.err, EndsWith("hbmprof: out of memory on sim:0, as reported before:\n"
                                "  profile    oom.0.pb.gz\n  more       hbmprof top oom.0.pb.gz\n"));
  EXPECT_EQ(ViewProfile(directory_ + "/oom.0.pb.gz").Sum("inuse_space"), 48 << 20);
}

TEST_F(OutOfMemoryTest, IsSilentIfSwitchedOff) {
  EXPECT_EQ(Run({"full"}, {"HBMPROF_OOM_OUTPUT=silent"}).err, "");
  EXPECT_EQ(FilesIn(directory_).size(), 1u);
  EXPECT_EQ(Run({"full"}, {"HBMPROF=0"}).err, "");
}

TEST_F(OutOfMemoryTest, IsReportedOnceAMinuteForEachDevice) {
  const CommandResult run = Run({"again", "1000"});
  EXPECT_EQ(ReportsIn(run.err), 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("out of memory on sim:1: Allocate of 128.00 MiB failed (phase=decode)\n"
                                 "  verdict    the request of 128.00 MiB is larger than the device"));
}

TEST_F(OutOfMemoryTest, UnnamedDeviceIsReportedOncePerDevice) {
  const std::string text = Run({"nameless"}).err;
  EXPECT_EQ(ReportsIn(text), 3) << text;
  EXPECT_THAT(text, HasSubstr("out of memory on sim:0: Nameless failed"));
  EXPECT_THAT(text, HasSubstr("out of memory on sim:1: Nameless failed"));
}

TEST_F(OutOfMemoryTest, CancelledThreadReports) {
  const CommandResult run = Run({"cancelled"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReportsIn(run.err), 1) << run.err;
}

TEST_F(OutOfMemoryTest, LastProfilesAreKept) {
  const CommandResult run = Run({"many", "12"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz", "HBMPROF_FLIGHT=1000"});
  EXPECT_EQ(ReportsIn(run.err), 12);
  const auto files = FilesIn(directory_);
  for (int i = 0; i < 12; ++i) {
    const std::string name = "oom." + std::to_string(i);
    EXPECT_EQ(files.count(name + ".pb.gz"), i < 2 ? 0u : 1u) << name;
    EXPECT_EQ(files.count(name + ".hbmrec"), i < 2 ? 0u : 1u) << name;
  }
}

TEST_F(OutOfMemoryTest, NoProfileFillsTheDisk) {
  const std::string disk = directory_ + "/disk";
  std::filesystem::create_directory(disk);
  const std::vector<std::string> with_disk = {
      "unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=60m disk " + disk + " && exec \"$@\"", "sh"};
  std::vector<std::string> command = with_disk;
  command.push_back("true");
  if (RunCommand(command).exit_code != 0) GTEST_SKIP() << "cannot mount a file system here";
  command = with_disk;
  command.insert(command.end(), {HBMPROF_OUT_OF_MEMORY_PROGRAM, "full"});
  const CommandResult run = RunCommand(command, {"HBMPROF_OOM_OUTPUT=" + disk + "/%n.pb.gz"}, {directory_, 0});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("\n  profile    none: less than 64 MiB of the disk would remain free\n"));
}

TEST_F(OutOfMemoryTest, NoRecordingBesideTheProfileFillsTheDisk) {
  const std::vector<std::string> flight = {"HBMPROF_FLIGHT=100000"};
  std::vector<std::string> environment = flight;
  environment.push_back("HBMPROF_OOM_OUTPUT=oom.pb.gz");
  Run({"full"}, environment);
  const auto pages = [&](const char* name) {
    return (std::filesystem::file_size(directory_ + "/" + name) + 4095) / 4096;
  };
  // The profile fits, and the recording does not.
  const size_t free = (size_t{64} << 20) + 4096 * (pages("oom.pb.gz") + pages("oom.hbmrec") / 2);
  const std::string disk = directory_ + "/disk";
  std::filesystem::create_directory(disk);
  std::vector<std::string> command = {
      "unshare",
      "-rm",
      "sh",
      "-c",
      "mount -t tmpfs -o size=" + std::to_string(free) + " disk " + disk + " && \"$@\"; ls " + disk,
      "sh"};
  if (RunCommand({"unshare", "-rm", "mount", "-t", "tmpfs", "disk", disk}).exit_code != 0) {
    GTEST_SKIP() << "cannot mount a file system here";
  }
  command.insert(command.end(), {HBMPROF_OUT_OF_MEMORY_PROGRAM, "full"});
  environment = flight;
  environment.push_back("HBMPROF_OOM_OUTPUT=" + disk + "/oom.pb.gz");
  const CommandResult run = RunCommand(command, environment, {directory_, 0});
  EXPECT_THAT(run.err, HasSubstr("hbmprof: no flight recording: less than 64 MiB of the disk would remain free"));
  EXPECT_THAT(run.err, HasSubstr("\n  profile    " + disk + "/oom.pb.gz\n"));
  EXPECT_THAT(run.out, HasSubstr("oom.pb.gz\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("hbmrec")));
}

// A program that runs out of memory on a kind of device.
struct Backend {
  const char* name;
  const char* program;
  std::vector<std::string> environment;
};

const std::vector<Backend>& Backends() {
  static const auto* backends = new std::vector<Backend> {
    {"Simulated", HBMPROF_OUT_OF_MEMORY_PROGRAM, {}}, {"Pjrt", HBMPROF_PJRT_OUT_OF_MEMORY_PROGRAM, {}},
#if defined(HBMPROF_CUDA_OUT_OF_MEMORY_PROGRAM)
        {"Driver",
         HBMPROF_CUDA_OUT_OF_MEMORY_PROGRAM,
         {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE,
          "HBMPROF_GPU_OUTPUT=off", "HBMPROF_OOM_OUTPUT=off"}},
#endif
  };
  return *backends;
}

// Returns the backend with this name; null if this build does not have it.
const Backend* BackendNamed(const std::string& name) {
  for (const Backend& backend : Backends()) {
    if (name == backend.name) return &backend;
  }
  return nullptr;
}

class EveryBackend : public OutOfMemoryTest, public ::testing::WithParamInterface<Backend> {
 protected:
  CommandResult Run(const char* mode, const char* argument) {
    return RunProgram({GetParam().program, mode, argument}, GetParam().environment);
  }
};

TEST_P(EveryBackend, ReportsOnceIfThreadsFailAtTheSameTime) { EXPECT_EQ(ReportsIn(Run("threads", "32").err), 1); }

TEST_P(EveryBackend, ReportsWithTwoMebibytesOfHostMemory) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's shadow memory does not fit into a limit on virtual memory";
  const std::string text = Run("host", "2097152").err;
  EXPECT_EQ(ReportsIn(text), 1) << text;
  EXPECT_THAT(text, HasSubstr("the device is full"));
  EXPECT_THAT(text, HasSubstr("(anonymous namespace)::GrowCache"));
  // Without any host memory, the report has at least the figures.
  EXPECT_THAT(Run("host", "0").err, HasSubstr("the device is full"));
}

INSTANTIATE_TEST_SUITE_P(Backends, EveryBackend, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return std::string(info.param.name); });

// A cause of a failure, and the text of its verdict.
struct Cause {
  const char* backend;
  const char* name;
  const char* verdict;                        // a regular expression; "" if the backend cannot have this cause
  const char* why_not = "";                   // only if the verdict is empty
  std::vector<std::string> environment = {};  // of the program
};

class OutOfMemoryVerdictTest : public OutOfMemoryTest, public ::testing::WithParamInterface<Cause> {
 protected:
  // Returns the beginning of a command that runs the rest in a control group of version 2 with a limit of 128 MiB, of
  // which 64 MiB are in use. Returns an empty command if this process may not mount file systems.
  std::vector<std::string> InControlGroup() {
    std::ifstream groups("/proc/self/cgroup");
    std::string group;
    for (std::string line; std::getline(groups, line);) {
      if (line.rfind("0::", 0) == 0) group = "/sys/fs/cgroup" + line.substr(3);
    }
    if (group.empty()) return {};
    const std::vector<std::string> command = {"unshare",
                                              "-rm",
                                              "sh",
                                              "-c",
                                              "mount -t tmpfs group /sys/fs/cgroup && mkdir -p " + group +
                                                  " && echo 134217728 > " + group + "/memory.max && echo 67108864 > " +
                                                  group + "/memory.current && exec \"$@\"",
                                              "sh"};
    std::vector<std::string> trial = command;
    trial.push_back("true");
    return RunCommand(trial).exit_code == 0 ? command : std::vector<std::string>();
  }
};

TEST_P(OutOfMemoryVerdictTest, NamesTheCause) {
  const Cause& cause = GetParam();
  if (*cause.verdict == '\0') GTEST_SKIP() << cause.why_not;
  const Backend* const backend = BackendNamed(cause.backend);
  if (backend == nullptr) GTEST_SKIP() << "the injected library is not built here";
  const std::string name = cause.name;
  std::vector<std::string> command;
  if (name == "control_group") {
    command = InControlGroup();
    if (command.empty()) GTEST_SKIP() << "cannot mount a file system here";
  }
  if (kSanitized && name == "addresses") {
    GTEST_SKIP() << "the sanitizer's shadow memory does not fit into a limit on virtual memory";
  }
  command.insert(command.end(), {backend->program, "verdict", name});
  std::vector<std::string> environment = backend->environment;
  environment.insert(environment.end(), cause.environment.begin(), cause.environment.end());
  const std::string text = RunProgram(command, environment).err;
  EXPECT_EQ(ReportsIn(text), 1) << text;
  EXPECT_THAT(text, ContainsRegex(std::string("\n  verdict    [^\n]*") + cause.verdict));
}

const Cause kCauses[] = {
    {"Simulated", "full", "the device is full: the recorded buffers of this process hold 48.00 MiB of 64.00 MiB"},
    {"Simulated", "too_large", "the request of 128.00 MiB is larger than the device, which has 64.00 MiB"},
    {"Simulated", "fragmented", "32.00 MiB are free, but the largest free block has 4.00 MiB"},
    {"Simulated", "limit", "a free block of 64.00 MiB would be enough: a limit"},
    {"Simulated", "idle_pool",
     "pools of this process hold 48.00 MiB of idle memory, which would be enough.*: the pool's own function"},
    {"Simulated", "other_processes", "other processes hold 48.00 MiB of the device and this process 16.00 MiB"},
    {"Simulated", "unaccounted", "32.00 MiB in use are unaccounted"},
    {"Simulated", "unknown", "the device does not report its capacity"},
    {"Simulated", "locked_memory", "may lock 4.00 MiB of host memory and has 0 B pinned.*ulimit -l"},

    {"Driver", "full", "the device is full: the recorded buffers of this process hold 768.00 MiB of 1.00 GiB"},
    {"Driver", "too_large", "the request of 2.00 GiB is larger than the device, which has 1.00 GiB"},
    {"Driver", "array_too_large", "the request of 2.00 GiB is larger than the device, which has 1.00 GiB"},
    // A part of a device (MIG): NVML reports the 1 GiB of the whole device.
    {"Driver",
     "slice_too_small",
     "the request of 128.00 MiB is larger than the device, which has 64.00 MiB",
     "",
     {"FAKE_CUDA_CAPACITY=67108864"}},
    {"Driver", "fragmented", "957.00 MiB are free: the free memory is fragmented, or a limit"},
    {"Driver", "idle_pool",
     "pools of this process hold 448.00 MiB of idle memory, which would be enough.*: cudaMemPoolTrimTo"},
    {"Driver", "other_processes", "other processes hold 768.00 MiB of the device and this process 64.00 MiB"},
    {"Driver", "unaccounted",
     "771.00 MiB in use are unaccounted: they belong to calls of this process that are not recorded"},
    {"Driver",
     "unaccounted_or_others",
     "771.00 MiB in use are unaccounted: they belong to other processes, or to calls of this process",
     "",
     {"FAKE_NVML_PROCESS=0"}},
    {"Driver", "pool_limit", "the pool may have 64.00 MiB in use and has 48.00 MiB: the limit of the pool"},
    {"Driver", "pool_limit_on_another_device", "the pool may have 64.00 MiB in use and has 48.00 MiB: the limit"},
    {"Driver", "pool_limit_in_locality_domain", "the pool may have 64.00 MiB in use and has 48.00 MiB: the limit"},
    {"Driver", "managed_pool", "no limit of the host explains the failure"},
    {"Driver",
     "control_group_of_device",
     "the control group of the process may use 128.00 MiB of the device and uses 96.00 MiB.*nvidia-smi memory-limits",
     "",
     {"FAKE_NVML_GROUP=134217728:100663296"}},
    {"Driver",
     "integrated",
     "the device uses the memory of the host, of which 189.00 MiB are free",
     "",
     {"FAKE_CUDA_INTEGRATED=1", "FAKE_NVML_MEMORY=0"}},
    {"Driver", "control_group", "the control group of the process may use 128.00 MiB of host memory and uses 64.00"},
    {"Driver", "locked_memory", "may lock 4.00 MiB of host memory and has 0 B pinned.*ulimit -l"},
    {"Driver", "locked_memory_of_node", "may lock 4.00 MiB of host memory and has 0 B pinned.*ulimit -l"},
    {"Driver", "locked_memory_of_pool", "may lock 4.00 MiB of host memory and has 0 B pinned.*ulimit -l"},
    {"Driver", "addresses", "the process may have .* of virtual memory and has .*ulimit -v"},
    {"Driver", "unknown", "the device does not report its capacity", "", {"FAKE_NVML_MEMORY=0"}},

    {"Pjrt", "full", "the device is full: the recorded buffers of this process hold 36.00 MiB of 64.00 MiB"},
    {"Pjrt", "too_large", "the request of 128.00 MiB is larger than the device, which has 64.00 MiB"},
    {"Pjrt", "fragmented", "60.00 MiB are free, but the largest free block has 8.00 MiB"},
    {"Pjrt", "limit", "a free block of 60.00 MiB would be enough: a limit"},
    {"Pjrt", "idle_pool",
     "pools of this process hold 32.00 MiB of idle memory, which would be enough.*: the pool's own function"},
    {"Pjrt", "unaccounted",
     "32.00 MiB in use are unaccounted: they belong to calls of this process that are not recorded"},
    {"Pjrt", "unknown", "the device does not report its capacity"},
    {"Pjrt", "control_group", "the control group of the process may use 128.00 MiB of host memory and uses 64.00"},
    {"Pjrt", "locked_memory", "may lock 4.00 MiB of host memory and has 0 B pinned.*ulimit -l"},
    {"Pjrt", "addresses", "the process may have .* of virtual memory and has .*ulimit -v"},
    {"Pjrt", "other_processes", "", "a plugin reports only the memory of its own clients"},
};
INSTANTIATE_TEST_SUITE_P(Causes, OutOfMemoryVerdictTest, ::testing::ValuesIn(kCauses),
                         [](const auto& info) { return std::string(info.param.backend) + "_" + info.param.name; });

TEST_F(OutOfMemoryTest, GrowthIsOfTheDeviceThatIsFull) {
  EXPECT_THAT(Run({"devices"}).err, HasSubstr("   16.00 MiB 100.0 %        1 live          +0 B  "));
}

TEST_F(OutOfMemoryTest, ReportsFragmentation) {
  EXPECT_THAT(Run({"fragments"}).err, HasSubstr("32.00 MiB are free, but the largest free block has 4.00 MiB"));
}

TEST_F(OutOfMemoryTest, ForkedChildReportsNothing) { EXPECT_EQ(ReportsIn(Run({"child"}).err), 1); }

}  // namespace
