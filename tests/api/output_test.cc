// The files of profiles: names, permissions, files of other users, processes that change their user, root or
// descriptors before they exit. Each test runs output_program.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "src/api/output/output_file.h"
#include "src/tool/reader/reader.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr char kProgram[] = HBMPROF_OUTPUT_PROGRAM;

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& [name, contents] : FilesIn(directory)) names.push_back(name);
  return names;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

std::multiset<int64_t> InUseOfEach(const std::string& directory) {
  std::multiset<int64_t> bytes;
  for (const std::string& name : NamesIn(directory))
    bytes.insert(ViewProfile(directory + "/" + name).Sum("inuse_space"));
  return bytes;
}

CommandResult RunProgram(std::vector<std::string> arguments, std::vector<std::string> environment) {
  arguments.insert(arguments.begin(), kProgram);
  environment.push_back("ASAN_OPTIONS=detect_leaks=0");
  return RunCommand(arguments, environment);
}

// The profile of this program or of one that it starts.
class OutputTest : public ::testing::Test {
 protected:
  OutputTest() : directory_(NewDirectory()) {}
  ~OutputTest() override { RunCommand({"rm", "-rf", directory_}); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Output(const std::string& name) const { return "HBMPROF_OUTPUT=" + Path(name); }
  // Lets other users into the directory.
  void Open(mode_t mode) const { ASSERT_EQ(chmod(directory_.c_str(), mode), 0); }

  const std::string directory_;
};

TEST_F(OutputTest, NewFilesAreTheOwnersOnly) {
  EXPECT_EQ(RunProgram({"leak"}, {Output("a")}).exit_code, 0);
  EXPECT_EQ(ModeOf(Path("a")), 0600u);
  const mode_t before = umask(077);
  EXPECT_EQ(chmod(Path("a").c_str(), 0644), 0);
  EXPECT_EQ(RunProgram({"leak"}, {Output("a")}).exit_code, 0);
  umask(before);
  EXPECT_EQ(ModeOf(Path("a")), 0644u) << "a file that is replaced keeps its permissions";
  ASSERT_TRUE(hbmprof::save_device_memory_profile(Path("c")).ok());
  EXPECT_EQ(ModeOf(Path("c")), 0600u);
}

TEST_F(OutputTest, ExecCompletesTheRecording) {
  const CommandResult run = RunProgram({"exec", "/bin/echo", "replaced"},
                                       {Output("a"), "HBMPROF_OUTPUT_ON_SIGNALS=1", "HBMPROF_RECORD=" + Path("r")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "replaced\n");
  EXPECT_EQ(ViewProfile(Path("a")).Sum("inuse_space"), 1000);
  const auto reader = hbmprof::internal::RecordingReader::Open(Path("r"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->is_complete()) << (*reader)->problem();
  EXPECT_EQ((*reader)->event_count(), 2) << "the allocation, and the mark of the profile";
}

TEST_F(OutputTest, ConcurrentProcessesHaveOwnRecordings) {
  const std::string command = "for i in 1 2 3 4 5 6 7 8; do " + std::string(kProgram) + " leak & done; wait";
  const CommandResult run = RunCommand({"sh", "-c", command}, {"HBMPROF_RECORD=" + Path("r.hbmrec")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("hbmprof: " + Path("r.hbmrec") + " exists: this run is recorded to " +
                                 Path("r.hbmrec.7") + "\n"));
  const std::vector<std::string> names = NamesIn(directory_);
  EXPECT_THAT(names, SizeIs(8));
  for (const std::string& name : names) {
    const auto reader = hbmprof::internal::RecordingReader::Open(Path(name));
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->is_complete()) << name;
    EXPECT_EQ((*reader)->event_count(), 1) << name;
  }
}

TEST_F(OutputTest, ExitWritesFlightRecording) {
  const std::vector<std::string> environment = {Output("a.pb.gz"), "HBMPROF_OUTPUT_ON_SIGNALS=1", "HBMPROF_FLIGHT=60s"};
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"leak"}, {"exec", "/bin/true"}}) {
    SCOPED_TRACE(arguments[0]);
    const CommandResult run = RunProgram(arguments, environment);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    const auto reader = hbmprof::internal::RecordingReader::Open(Path("a.hbmrec"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->is_complete()) << (*reader)->problem();
    EXPECT_GE((*reader)->event_count(), 1);
    unlink(Path("a.hbmrec").c_str());
  }
}

TEST_F(OutputTest, SetUserIdProgramReadsNoVariables) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a program that is root's";
  struct statvfs system;
  ASSERT_EQ(statvfs(directory_.c_str(), &system), 0);
  if ((system.f_flag & ST_NOSUID) != 0) GTEST_SKIP() << directory_ << " is mounted nosuid";
  Open(0755);
  ASSERT_EQ(RunCommand({"cp", kProgram, Path("program")}).exit_code, 0);
  ASSERT_EQ(chmod(Path("program").c_str(), 04755), 0);
  std::ofstream(Path("secret")) << "of root";
  ASSERT_EQ(chmod(Path("secret").c_str(), 0600), 0);
  const CommandResult run = RunProgram({"nobody", Path("program"), "leak"}, {Output("secret")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(Contents(Path("secret")), "of root");
  // It does not read the other variables either: a bad value would be reported.
  EXPECT_EQ(RunProgram({"nobody", Path("program"), "leak"}, {"HBMPROF=bad", "HBMPROF_STACK_DEPTH=bad"}).err, "");
  EXPECT_NE(RunProgram({"leak"}, {"HBMPROF=bad"}).err, "");
}

TEST_F(OutputTest, LinkIsNotFollowed) {
  const std::string elsewhere = NewDirectory();
  std::ofstream(elsewhere + "/secret") << "of root";
  ASSERT_EQ(symlink((elsewhere + "/secret").c_str(), Path("link").c_str()), 0);
  const CommandResult run = RunProgram({"leak"}, {Output("link")});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr(Path("link") + " is not replaced"));
  EXPECT_EQ(Contents(elsewhere + "/secret"), "of root");
  EXPECT_EQ(ViewProfile(Path("link.1")).Sum("inuse_space"), 1000);
}

TEST_F(OutputTest, ProcessesWithTheSameIdDoNotReplaceEachOthersFiles) {
  const std::vector<std::string> alone = {"unshare", "--pid", "--fork", "--kill-child", kProgram, "leak"};
  const CommandResult able = RunCommand({"unshare", "--pid", "--fork", "true"});
  if (able.exit_code != 0) GTEST_SKIP() << "cannot make a process id name space: " << able.err;
  for (const char* pattern : {"%p.%n.pb.gz", "only.%p.pb.gz"}) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(RunCommand(alone, {Output(pattern)}).exit_code, 0);
  }
  EXPECT_THAT(NamesIn(directory_),
              ElementsAre("1.0.pb.gz", "1.1.pb.gz", "1.2.pb.gz", "only.1.1.pb.gz", "only.1.2.pb.gz", "only.1.pb.gz"));
}

TEST_F(OutputTest, FixedNameReplacesFileOfEarlierProcess) {
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RunProgram({"leak"}, {Output("a.pb.gz")}).err, "");
  EXPECT_THAT(NamesIn(directory_), ElementsAre("a.pb.gz"));
}

TEST_F(OutputTest, FixedNameKeepsFileOfConcurrentProcess) {
  const CommandResult run = RunProgram({"hold", kProgram, "forks", "1"}, {Output("a.pb.gz")});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(NamesIn(directory_), ElementsAre("a.1.pb.gz", "a.2.pb.gz", "a.pb.gz"));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr(Path("a.pb.gz") + " is not replaced"));
  EXPECT_THAT(run.err, HasSubstr("the profile is in " + Path("a.2.pb.gz")));
}

TEST_F(OutputTest, ConcurrentChildrenKeepAllProfiles) {
  for (const char* name : {"a.pb.gz", "%n.pb.gz"}) {
    const CommandResult run = RunProgram({"forks", "20"}, {Output(name)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  const std::multiset<int64_t> bytes = InUseOfEach(directory_);
  EXPECT_EQ(bytes.count(1), 40u);
  EXPECT_EQ(bytes.count(1000), 2u);
  EXPECT_EQ(bytes.size(), 42u);
}

TEST_F(OutputTest, TwoCopiesOfTheLibraryInOneProcessKeepBothProfiles) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the library cannot be loaded beside a sanitizer's program";
#endif
  for (const char* name : {"%p.%n.pb.gz", "a.pb.gz", "only.%p.pb.gz"}) {
    const CommandResult run = RunProgram({"copies", HBMPROF_OUTPUT_COPY}, {Output(name)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  const std::multiset<int64_t> bytes = InUseOfEach(directory_);
  EXPECT_EQ(bytes.count(1000), 3u);
  EXPECT_EQ(bytes.count(2000), 3u);
}

TEST_F(OutputTest, PrintsNothingToFileWithDescriptor2) {
  EXPECT_EQ(RunProgram({"reopen", Path("log")}, {"HBMPROF_OUTPUT=/nowhere/a.pb.gz"}).exit_code, 0);
  EXPECT_EQ(Contents(Path("log")), "its own\n");
}

TEST_F(OutputTest, PrintsNothingToAPipeWithoutAReader) {
  const CommandResult run = RunProgram({"broken", kProgram, "leak"}, {"HBMPROF_OUTPUT=/nowhere/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 0) << "SIGPIPE would be 141";
}

// A sandbox of each kind, entered after the first event.
class SandboxTest : public OutputTest {
 protected:
  SandboxTest() {
    Open(0755);
    mkdir(Path("root").c_str(), 0755);
    mkdir(Path("out").c_str(), 0700);
  }
  void ExpectProfile(const CommandResult& run) const {
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    EXPECT_THAT(NamesIn(Path("out")), ElementsAre("a.pb.gz"));
    EXPECT_EQ(ViewProfile(Path("out/a.pb.gz")).Sum("inuse_space"), 1000);
  }
};

TEST_F(SandboxTest, WithAnotherRootOrUserThereIsAMessage) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const std::vector<std::string>& mode : {std::vector<std::string>{"root", Path("root")}, {"drop"}}) {
    const CommandResult run = RunProgram(mode, {Output("out/a.pb.gz")});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr("no profile at exit"));
    EXPECT_THAT(NamesIn(Path("out")), IsEmpty());
  }
}

// A profile at an interval, which was begun before the one at exit, can be written after it.
TEST(OutputFileTest, OlderProfileDoesNotReplaceTheLastOne) {
  const std::string path = NewDirectory() + "/a.pb.gz";
  hbmprof::internal::OutputFile file(path, 0600);
  std::string name;
  EXPECT_TRUE(file.Write("last", /*is_last=*/true, &name).ok());
  EXPECT_TRUE(file.Write("older", /*is_last=*/false, &name).ok());
  EXPECT_EQ(name, path);
  std::ifstream written(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(written), {}), "last");
}

// The lists of docs/program.md.
const std::vector<int> kCallsOfExit = {
    SYS_write,      SYS_newfstatat,      SYS_fstat,         SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_getpid,
    SYS_uname,      SYS_futex,           SYS_brk,           SYS_mmap,           SYS_munmap,        SYS_mremap,
    SYS_madvise,    SYS_mprotect,        SYS_clock_gettime, SYS_openat,         SYS_close,         SYS_read,
    SYS_pread64,    SYS_lseek,           SYS_fcntl,         SYS_fsync,          SYS_geteuid,       SYS_flock,
    SYS_renameat,   SYS_renameat2,       SYS_unlinkat,      SYS_clone3,         SYS_rseq,          SYS_exit,
    SYS_exit_group, SYS_set_robust_list, SYS_rt_sigaction};

std::vector<std::string> FilterOf(const std::vector<int>& calls) {
  std::vector<std::string> arguments = {"filter"};
  for (const int call : calls) arguments.push_back(std::to_string(call));
  return arguments;
}

TEST_F(SandboxTest, FilterWithTheDocumentedCallsAllowsTheProfile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer makes calls of its own";
#endif
  std::vector<int> without_open = kCallsOfExit;
  without_open.erase(std::remove(without_open.begin(), without_open.end(), SYS_openat), without_open.end());
  EXPECT_EQ(RunProgram(FilterOf(without_open), {Output("out/a.pb.gz")}).exit_code, 128 + SIGSYS);
  EXPECT_THAT(NamesIn(Path("out")), IsEmpty());
  for (const char* file : {"new", "replaced"}) {
    SCOPED_TRACE(file);
    ExpectProfile(RunProgram(FilterOf(kCallsOfExit), {Output("out/a.pb.gz")}));
  }
}

}  // namespace
