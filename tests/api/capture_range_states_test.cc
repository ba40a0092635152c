// Capture ranges whose calls meet in several threads: one thread is held inside a call while another one calls.
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "src/api/control/capture_range.h"
#include "src/api/output/file_work.h"
#include "src/api/public/default_profiler.h"
#include "src/base/message.h"
#include "tests/support/program_run.h"
#include "tests/support/single_step.h"

namespace hbmprof::internal {
namespace {

using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Sets the environment of the process before it has a profiler.
const std::string& Folder() {
  static const std::string folder = [] {
    std::string made = NewDirectory();
    setenv("STATES_OUTPUT", (made + "/r.%p.%n.pb.gz").c_str(), 1);
    setenv("HBMPROF_CAPTURE_RANGE", "cudaProfilerApi", 1);
    SetOutputVariable("STATES_OUTPUT");
    return made;
  }();
  return folder;
}

// Returns what hbmprof prints during the call.
template <typename Call>
std::string Printed(const Call& call) {
  testing::internal::CaptureStderr();
  UseStandardError();
  call();
  std::string text = testing::internal::GetCapturedStderr();
  UseStandardError();
  return text;
}

thread_local bool is_to_be_held = false;

// While it exists, the disk does not answer.
std::atomic<bool> disk_hangs{false};
std::atomic<int> hanging_files{0};
class HangingDisk {
 public:
  HangingDisk() { disk_hangs = true; }
  ~HangingDisk() { End(); }
  // Also waits until the files are written.
  static void End() {
    disk_hangs = false;
    FinishFileWork();
  }
  static void AwaitFile() {
    while (hanging_files.load() == 0) usleep(1000);
  }
};

class CaptureRangeStatesTest : public ::testing::Test {
 protected:
  CaptureRangeStatesTest() {
    Folder();
    Profiler& profiler = Profiler::Default();
    const DeviceId device = profiler.Device("GPU:0");
    // A thread of Held that reads the device's numbers waits here. That of a recording reads them, too.
    profiler.SetDeviceProbe(device, [this] {
      if (!is_to_be_held) return DeviceProbe();
      ++probes_;
      while (holds_.load()) usleep(1000);
      return DeviceProbe();
    });
    profiler.RecordAlloc(&buffer_, 4096, {device});
    before_ = Profiles();
  }
  ~CaptureRangeStatesTest() override {
    Profiler::Default().RemoveDeviceProbe(Profiler::Default().Device("GPU:0"), nullptr);
    Profiler::Default().RecordFree(&buffer_);
  }

  static std::set<std::string> Profiles() {
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
      if (entry.path().extension() == ".gz") paths.insert(entry.path());
    }
    return paths;
  }
  // Returns the profiles that were written since the start of the test.
  std::vector<std::string> NewProfiles() const {
    std::vector<std::string> paths;
    for (const std::string& path : Profiles()) {
      if (before_.count(path) == 0) paths.push_back(path);
    }
    return paths;
  }
  // The same, but waits until there are `count`, because the end of a range waits for a quarter of a second only.
  std::vector<std::string> AwaitProfiles(size_t count) const {
    for (int i = 0; i < 300 && NewProfiles().size() < count; ++i) usleep(100'000);
    return NewProfiles();
  }

  // Starts a thread that makes the call, and waits until it is held in a probe.
  template <typename Call>
  std::thread Held(const Call& call) {
    holds_.store(true);
    const int before = probes_.load();
    std::thread thread([call] {
      is_to_be_held = true;
      call();
    });
    while (probes_.load() == before) usleep(1000);
    return thread;
  }
  void Release(std::thread& thread) {
    holds_.store(false);
    thread.join();
  }

  char buffer_ = 0;
  std::atomic<bool> holds_{false};
  std::atomic<int> probes_{0};
  std::set<std::string> before_;
};

TEST_F(CaptureRangeStatesTest, AnEndWhileTheRangeBeginsHasNoEffect) {
  const HangingDisk disk;
  std::atomic<uint64_t> number{0};
  std::thread begins([&] { number = BeginCaptureRange("a"); });
  HangingDisk::AwaitFile();
  EXPECT_EQ(BeginCaptureRange("b"), 0u) << "one begins already";
  EndCaptureRange(0);  // does not wait
  EXPECT_THAT(NewProfiles(), IsEmpty());
  begins.join();
  HangingDisk::End();
  EXPECT_NE(number.load(), 0u);
  EXPECT_THAT(NewProfiles(), IsEmpty());
  EndCaptureRange(number);
  ASSERT_THAT(AwaitProfiles(1), SizeIs(1));
  EXPECT_EQ(ViewProfile(NewProfiles()[0]).Sum("inuse_space"), 4096);
  EndCaptureRange(0);
  EXPECT_THAT(AwaitProfiles(1), SizeIs(1)) << "it has ended";
}

TEST_F(CaptureRangeStatesTest, NoCallWaitsForADiskThatHangs) {
  Profiler& profiler = Profiler::Default();
  const HangingDisk disk;
  const auto start = std::chrono::steady_clock::now();
  char buffers[3] = {};
  for (char& buffer : buffers) {
    const uint64_t number = BeginCaptureRange("a");
    EXPECT_NE(number, 0u);
    profiler.RecordAlloc(&buffer, 1, {profiler.Device("GPU:0")});
    EndCaptureRange(number);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
  HangingDisk::End();
  for (char& buffer : buffers) profiler.RecordFree(&buffer);
  std::multiset<int64_t> in_use;
  for (const std::string& path : NewProfiles()) in_use.insert(ViewProfile(path).Sum("inuse_space"));
  EXPECT_EQ(in_use, (std::multiset<int64_t>{4097, 4098, 4099})) << "each of the end of its range";
}

TEST_F(CaptureRangeStatesTest, RangesThatTheDiskCannotTakeAreNotCaptured) {
  const HangingDisk disk;
  uint64_t number = 1;
  const std::string printed = Printed([&number] {
    for (int i = 0; i < 30 && number != 0; ++i) {
      number = BeginCaptureRange("a");
      EndCaptureRange(number);
    }
  });
  EXPECT_EQ(number, 0u);
  EXPECT_THAT(printed, HasSubstr("hbmprof: the range a is not captured: too many files wait for the disk"));
  HangingDisk::End();
  EXPECT_THAT(AwaitProfiles(8), SizeIs(8));
}

TEST_F(CaptureRangeStatesTest, ARangeThatBeginsWhileAnotherEndsIsNotCaptured) {
  const uint64_t first = BeginCaptureRange("a");
  ASSERT_NE(first, 0u);
  std::thread ends = Held([] { EndCaptureRange(0); });
  EXPECT_THAT(Printed([] { EXPECT_EQ(BeginCaptureRange("b"), 0u); }),
              HasSubstr("hbmprof: the range b is not captured: another thread begins or ends one"));
  EndCaptureRange(0);
  Release(ends);
  EXPECT_THAT(AwaitProfiles(1), SizeIs(1));
  const uint64_t third = BeginCaptureRange("c");
  EXPECT_NE(third, 0u);
  EXPECT_NE(third, first);
  EndCaptureRange(first);  // it has ended
  EXPECT_THAT(AwaitProfiles(1), SizeIs(1));
  EndCaptureRange(third);
  EXPECT_THAT(AwaitProfiles(2), SizeIs(2));
}

#if !defined(__SANITIZE_THREAD__)  // the thread sanitizer delays signals
// Stops a thread in EndCaptureRange.
std::atomic<int> instructions_left{0};  // to the stop
std::atomic<bool> has_stopped{false};
std::atomic<bool> goes_on{false};

void StopAfterInstructions(int, siginfo_t*, void* interrupted) {
  static volatile bool is_inside = false;
  auto* const context = static_cast<ucontext_t*>(interrupted);
  hbmprof_test::SingleStep::Arrive(context);
  if (hbmprof_test::SingleStep::Pc(context) == reinterpret_cast<uintptr_t>(&EndCaptureRange)) is_inside = true;
  if (!is_inside || instructions_left.fetch_sub(1) > 0) return hbmprof_test::SingleStep::StepAfter(context);
  is_inside = false;
  has_stopped = true;
  while (!goes_on.load()) usleep(100);
}

TEST_F(CaptureRangeStatesTest, AnEndOfARangeThatHasEndedMeanwhileLeavesTheNextOneOpen) {
  struct sigaction action = {};
  action.sa_sigaction = &StopAfterInstructions;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
  int next_ones = 0;
  for (int instructions = 0; instructions < 300; instructions += 5) {
    SCOPED_TRACE(instructions);
    const uint64_t first = BeginCaptureRange("a");
    ASSERT_NE(first, 0u);
    instructions_left = instructions;
    has_stopped = goes_on = false;
    std::thread ends([first] {
      raise(SIGTRAP);
      EndCaptureRange(first);
    });
    while (!has_stopped.load()) usleep(100);
    EndCaptureRange(first);
    const uint64_t second = BeginCaptureRange("b");  // 0 if the thread was stopped while it ends the first one
    goes_on = true;
    ends.join();
    if (second == 0) continue;
    ++next_ones;
    const size_t before = NewProfiles().size();
    EndCaptureRange(second);
    ASSERT_EQ(AwaitProfiles(before + 1).size(), before + 1) << "the thread has ended the second range";
  }
  EXPECT_GT(next_ones, 10);
  signal(SIGTRAP, SIG_DFL);
}
#endif

TEST_F(CaptureRangeStatesTest, ManyRangesHaveFilesOfTheSameSize) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kRanges = 200;
#else
  constexpr int kRanges = 500;
#endif
  std::vector<uintmax_t> sizes;
  for (int i = 0; i < kRanges; ++i) {
    const uint64_t number = BeginCaptureRange("step");
    ASSERT_NE(number, 0u);
    EndCaptureRange(number);
  }
  for (const std::string& profile : NewProfiles()) {
    sizes.push_back(std::filesystem::file_size(profile.substr(0, profile.size() - 6) + ".hbmrec"));
  }
  ASSERT_THAT(sizes, SizeIs(kRanges));
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  EXPECT_LE(*most, *least + *least / 10);
}

TEST_F(CaptureRangeStatesTest, AChildThatIsForkedWhileARangeBeginsHasNoRanges) {
  const HangingDisk disk;
  std::thread begins([] { BeginCaptureRange("a"); });
  HangingDisk::AwaitFile();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    EndCaptureRange(0);
    _exit(BeginCaptureRange("b") == 0 && NewProfiles().empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  begins.join();
  HangingDisk::End();
  EndCaptureRange(0);
  EXPECT_THAT(AwaitProfiles(1), SizeIs(1));
}

TEST_F(CaptureRangeStatesTest, TheEndOfTheProcessWaitsForARangeThatEnds) {
  BeginCaptureRange("a");
  std::thread ends = Held([] { EndCaptureRange(0); });
  std::thread releases([this] {
    usleep(50'000);
    holds_.store(false);
  });
  EndCaptureRangeAtExit();
  EXPECT_THAT(AwaitProfiles(1), SizeIs(1));
  releases.join();
  ends.join();
}

TEST_F(CaptureRangeStatesTest, ARecordingInProgressContinues) {
  const std::string recording = NewDirectory() + "/own.hbmrec";
  ASSERT_TRUE(StartRecording(recording).ok());
  EXPECT_THAT(Printed([] { EXPECT_NE(BeginCaptureRange("a"), 0u); }),
              HasSubstr("hbmprof: no recording of the range a: StartRecording: there is a recording already"));
  EndCaptureRange(0);
  ASSERT_THAT(AwaitProfiles(1), SizeIs(1));
  const std::string profile = NewProfiles()[0];
  EXPECT_FALSE(std::filesystem::exists(profile.substr(0, profile.size() - 6) + ".hbmrec"));
  EXPECT_TRUE(StopRecording().ok());
}

TEST_F(CaptureRangeStatesTest, ThreadsThatMeetAtRandomLeaveWholeFiles) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 25; ++k) {
        const uint64_t number = BeginCaptureRange("random");
        EndCaptureRange(k % 2 == 0 ? number : 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EndCaptureRange(0);
  EXPECT_GE(AwaitProfiles(1).size(), 1u);
  for (const std::string& path : NewProfiles()) EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), 4096);
}

// The last test: the messages of a process are counted.
TEST_F(CaptureRangeStatesTest, ARangeEndsWhileOtherThreadsTryToBeginOne) {
  for (int round = 0; round < 50; ++round) {
    const uint64_t number = BeginCaptureRange("outer");
    ASSERT_NE(number, 0u);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&stop] {
        while (!stop.load()) BeginCaptureRange("inner");
      });
    }
    usleep(1000);
    EndCaptureRange(number);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    // The range has ended, so another end of it has no effect.
    const size_t profiles = NewProfiles().size();
    EndCaptureRange(number);
    EXPECT_EQ(NewProfiles().size(), profiles) << "round " << round;
    EndCaptureRange(0);
  }
}

TEST_F(CaptureRangeStatesTest, OnlyTheFirstMessagesAboutRangesArePrinted) {
  ASSERT_NE(BeginCaptureRange("a"), 0u);
  std::thread ends = Held([] { EndCaptureRange(0); });
  const std::string printed = Printed([] {
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(BeginCaptureRange("b"), 0u);
  });
  Release(ends);
  EXPECT_LE(std::count(printed.begin(), printed.end(), '\n'), 11);
  EXPECT_THAT(printed, HasSubstr("hbmprof: further messages about ranges are not printed\n"));
}

}  // namespace
}  // namespace hbmprof::internal

// Takes the place of the C library's function.
extern "C" int fsync(int file) {
  using namespace hbmprof::internal;  // NOLINT
  ++hanging_files;
  while (disk_hangs.load()) usleep(1000);
  --hanging_files;
  return static_cast<int>(syscall(SYS_fsync, file));
}
