// WriteFileAtomically against real file systems, real limits and real kills.
#include "src/base/atomic_file.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace hbmprof_test {
namespace {

using hbmprof::internal::WriteFileAtomically;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSkipped = 77;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) return {"cannot open " + directory};
  while (const dirent* entry = readdir(stream)) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) names.emplace_back(entry->d_name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

// Runs `body` in a child process and gives its exit code, or 128 + the signal that ended it.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Prints what is wrong in a child, where gtest's own reporting is lost.
int Fail(const std::string& what) {
  std::cerr << what << std::endl;
  return 1;
}

class AtomicFile : public testing::Test {
 protected:
  AtomicFile() {
    std::string pattern = testing::TempDir() + "/hbmprof_atomic_file_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~AtomicFile() override {
    chmod(directory_.c_str(), 0700);
    for (const std::string& name : Names(directory_)) {
      const std::string path = Path(name);
      if (unlink(path.c_str()) != 0) rmdir(path.c_str());
    }
    rmdir(directory_.c_str());
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
};

TEST_F(AtomicFile, WritesANewFileAndNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), std::string("x\0y", 3)).ok());
  EXPECT_EQ(Contents(Path("a")), std::string("x\0y", 3));
  EXPECT_THAT(Names(directory_), ElementsAre("a"));
}

TEST_F(AtomicFile, ReplacesAnOldFile) {
  std::ofstream(Path("a")) << "a much longer old text";
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new").ok());
  EXPECT_EQ(Contents(Path("a")), "new");
  EXPECT_THAT(Names(directory_), ElementsAre("a"));
}

TEST_F(AtomicFile, WritesEmptyAndLargeFiles) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "").ok());
  EXPECT_EQ(Contents(Path("a")), "");
  const std::string large(20 << 20, 'z');
  ASSERT_TRUE(WriteFileAtomically(Path("a"), large).ok());
  EXPECT_TRUE(Contents(Path("a")) == large);
}

TEST_F(AtomicFile, TakesPathsRelativeToTheWorkingDirectory) {
  const int code = InChild([&] {
    if (chdir(directory_.c_str()) != 0 || mkdir("sub", 0700) != 0) return Fail("chdir");
    for (const char* path : {"plain", "./dot", "sub/below", "sub/../up"}) {
      const absl::Status status = WriteFileAtomically(path, path);
      if (!status.ok()) return Fail(status.ToString());
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(Contents(Path("plain")), "plain");
  EXPECT_EQ(Contents(Path("dot")), "./dot");
  EXPECT_EQ(Contents(Path("sub/below")), "sub/below");
  EXPECT_EQ(Contents(Path("up")), "sub/../up");
  unlink(Path("sub/below").c_str());
}

TEST_F(AtomicFile, TakesTheLongestNameAFileSystemAllows) {
  const std::string longest(255, 'n');
  ASSERT_TRUE(WriteFileAtomically(Path(longest), "x").ok());
  EXPECT_THAT(Names(directory_), ElementsAre(longest));
  EXPECT_EQ(WriteFileAtomically(Path(longest + "n"), "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(directory_), ElementsAre(longest));
}

TEST_F(AtomicFile, GivesTheFileTheModeOfTheProcess) {
  const int code = InChild([&] {
    umask(027);
    return WriteFileAtomically(Path("a"), "x").ok() ? 0 : 1;
  });
  ASSERT_EQ(code, 0);
  struct stat info;
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(AtomicFile, WritesThroughASymbolicLink) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  ASSERT_EQ(symlink("a", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new").ok());
  EXPECT_EQ(Contents(Path("a")), "new");
  struct stat info;
  ASSERT_EQ(lstat(Path("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
}

TEST_F(AtomicFile, RefusesWhatIsNotARegularFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const std::string& path :
       {std::string("/dev/null"), directory_, Path("pipe"), directory_ + "/", std::string()}) {
    const absl::Status status = WriteFileAtomically(path, "x");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  struct stat info;
  ASSERT_EQ(stat("/dev/null", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
  EXPECT_THAT(Names(directory_), ElementsAre("pipe"));
}

TEST_F(AtomicFile, SaysThatADirectoryIsMissing) {
  const absl::Status status = WriteFileAtomically(Path("no/such/file"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("no/such/file")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));

  std::ofstream(Path("file")) << "x";
  EXPECT_EQ(WriteFileAtomically(Path("file/below"), "x").code(), absl::StatusCode::kNotFound);
}

TEST_F(AtomicFile, SaysThatADirectoryIsNotWritable) {
  const int code = InChild([&] {
    if (WriteFileAtomically(Path("a"), "old") != absl::OkStatus() || chmod(directory_.c_str(), 0500) != 0) return 2;
    if (geteuid() == 0 && (chown(directory_.c_str(), 65534, 65534) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) {
      return kSkipped;
    }
    const absl::Status status = WriteFileAtomically(Path("a"), "new");
    if (status.code() != absl::StatusCode::kPermissionDenied) return Fail(status.ToString());
    if (Contents(Path("a")) != "old") return Fail("the file changed");
    return 0;
  });
  if (code == kSkipped) GTEST_SKIP() << "cannot give up root's rights here";
  EXPECT_EQ(code, 0);
}

// The limit is below what is written, so the kernel cuts the write and sends SIGXFSZ, which ends a process by default.
int WriteBeyondTheFileSizeLimit(const std::string& path, const std::string& directory) {
  const rlimit limit = {1 << 16, 1 << 16};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return Fail("setrlimit");
  const absl::Status status = WriteFileAtomically(path, std::string(1 << 20, 'x'));
  if (status.code() != absl::StatusCode::kResourceExhausted) return Fail(status.ToString());
  if (status.message().find("File too large") == absl::string_view::npos) return Fail(status.ToString());
  sigset_t pending;
  if (sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) != 0) return Fail("SIGXFSZ is pending");
  sigset_t blocked;
  if (pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0 || sigismember(&blocked, SIGXFSZ) != 0) {
    return Fail("SIGXFSZ stayed blocked");
  }
  if (Contents(path) != "old") return Fail("the file changed");
  if (Names(directory).size() != 1) return Fail("a temporary file stayed");
  return 0;
}

TEST_F(AtomicFile, SurvivesTheFileSizeLimit) {
  std::ofstream(Path("a")) << "old";
  EXPECT_EQ(InChild([&] { return WriteBeyondTheFileSizeLimit(Path("a"), directory_); }), 0);
}

TEST_F(AtomicFile, LeavesASizeLimitSignalThatWasAlreadyPending) {
  EXPECT_EQ(InChild([&] {
              sigset_t signal;
              sigemptyset(&signal);
              sigaddset(&signal, SIGXFSZ);
              pthread_sigmask(SIG_BLOCK, &signal, nullptr);
              raise(SIGXFSZ);
              if (!WriteFileAtomically(Path("a"), "x").ok()) return Fail("write");
              sigset_t pending;
              sigpending(&pending);
              return sigismember(&pending, SIGXFSZ) == 1 ? 0 : Fail("the signal is gone");
            }),
            0);
}

TEST_F(AtomicFile, SaysThatTheDiskIsFull) {
  const int code = InChild([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kSkipped;
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=1m") != 0) return kSkipped;
    if (WriteFileAtomically(Path("a"), "old") != absl::OkStatus()) return Fail("write to an empty disk");
    const absl::Status status = WriteFileAtomically(Path("a"), std::string(2 << 20, 'x'));
    if (status.code() != absl::StatusCode::kResourceExhausted) return Fail(status.ToString());
    if (status.message().find("No space left on device") == absl::string_view::npos) return Fail(status.ToString());
    if (Contents(Path("a")) != "old") return Fail("the file changed");
    if (Names(directory_).size() != 1) return Fail("a temporary file stayed");
    // The space is free again.
    if (WriteFileAtomically(Path("a"), std::string(1 << 19, 'x')) != absl::OkStatus()) return Fail("second write");
    return 0;
  });
  if (code == kSkipped) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << strerror(EPERM);
  EXPECT_EQ(code, 0);
}

// Without /proc a file that has no name cannot be given one, as on file systems that know no such files.
TEST_F(AtomicFile, WritesByWayOfANamedFileWhereItMust) {
  const int code = InChild([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kSkipped;
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", "/proc", "tmpfs", 0, "size=64k") != 0) return kSkipped;
    if (access("/proc/self", F_OK) == 0) return Fail("/proc is still there");
    for (const char* text : {"old", "new"}) {
      const absl::Status status = WriteFileAtomically(Path("a"), text);
      if (!status.ok()) return Fail(status.ToString());
      if (Contents(Path("a")) != text) return Fail("wrong contents");
      if (Names(directory_).size() != 1) return Fail("a temporary file stayed");
    }
    unlink(Path("a").c_str());
    std::ofstream(Path("a")) << "old";
    return WriteBeyondTheFileSizeLimit(Path("a"), directory_);
  });
  if (code == kSkipped) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << strerror(EPERM);
  EXPECT_EQ(code, 0);
}

// A writer that is killed at any moment leaves one of the complete contents that it wrote.
TEST_F(AtomicFile, IsCompleteWheneverTheWriterIsKilled) {
  constexpr size_t kSize = 8 << 20;
  const std::string path = Path("a");
  int partial = 0;
  int seen = 0;
  for (int round = 0; round < 20; ++round) {
    unlink(path.c_str());
    const pid_t child = fork();
    if (child == 0) {
      for (char letter = 'a';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
        if (!WriteFileAtomically(path, std::string(kSize, letter)).ok()) _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + 3700 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed";
    if (access(path.c_str(), F_OK) != 0) continue;
    ++seen;
    const std::string contents = Contents(path);
    if (contents != std::string(kSize, contents.empty() ? '?' : contents[0])) ++partial;
  }
  EXPECT_EQ(partial, 0) << "of " << seen;
  // What has a temporary name was complete when it got it; a name from between link and rename may stay.
  for (const std::string& name : Names(directory_)) {
    struct stat info;
    ASSERT_EQ(stat(Path(name).c_str(), &info), 0);
    EXPECT_EQ(static_cast<size_t>(info.st_size), kSize) << name;
  }
}

TEST_F(AtomicFile, GivesThreadsThatWriteTheSameFileOneWinner) {
  std::vector<std::thread> threads;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    threads.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) {
        const absl::Status status = WriteFileAtomically(Path("a"), std::string(100000, letter));
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string contents = Contents(Path("a"));
  ASSERT_EQ(contents.size(), 100000u);
  EXPECT_EQ(contents, std::string(100000, contents[0]));
  EXPECT_THAT(Names(directory_), ElementsAre("a"));
}

}  // namespace
}  // namespace hbmprof_test
