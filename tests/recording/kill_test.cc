// A process that is killed while it records leaves a file that holds the first events.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "src/tool/reader/reader.h"
#include "tests/support/make_recording.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof::internal {
namespace {

using ::hbmprof_test::NewDirectory;

// Returns the number of events of the recording at `path`; -1 if they are not the first events of `all`.
int64_t PrefixOf(const std::string& path, RecordingReader& all) {
  const auto reader = RecordingReader::Open(path);
  // Killed before the file existed, or before its first block was written.
  if (!reader.ok()) return 0;
  all.Rewind();
  int64_t count = 0;
  RecordedEvent a, b;
  for (; (*reader)->Next(&a); ++count) {
    if (!all.Next(&b)) return -1;
    if (a.time != b.time || a.id != b.id || a.bytes != b.bytes || a.site != b.site || a.kind != b.kind) return -1;
  }
  return count;
}

// The variable HBMPROF_KILLS sets the number of kills, such as 200.
TEST(RecordingKillTest, KilledProcessLeavesFirstEvents) {
  using Clock = std::chrono::steady_clock;
  const char* wanted = std::getenv("HBMPROF_KILLS");
  const int kills = wanted == nullptr ? 20 : std::atoi(wanted);
  hbmprof_test::MadeLoad load;
  load.events = 100000;
  load.pool = true;
  const std::string directory = NewDirectory();
  const Clock::time_point start = Clock::now();
  ASSERT_TRUE(hbmprof_test::MakeRecording(directory + "/all.hbmrec", load).ok());
  const std::chrono::nanoseconds whole = Clock::now() - start;
  const auto all = *RecordingReader::Open(directory + "/all.hbmrec");
  std::mt19937_64 random(11);
  int partial = 0;
  for (int i = 0; i < kills; ++i) {
    const std::string path = directory + "/" + std::to_string(i) + ".hbmrec";
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(hbmprof_test::MakeRecording(path, load).ok() ? 0 : 1);
    std::this_thread::sleep_for(whole * (random() % 1000) / 1000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const int64_t count = PrefixOf(path, *all);
    ASSERT_GE(count, 0) << path;
    if (count > 0 && count < all->event_count()) ++partial;
    unlink(path.c_str());
  }
  EXPECT_GT(partial, 0);
  RecordProperty("partial", partial);
}

}  // namespace
}  // namespace hbmprof::internal
