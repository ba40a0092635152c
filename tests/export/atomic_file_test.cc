// WriteFileAtomically on real file systems, with real limits and kills.
#include "src/base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::FileDescriptor;
using hbmprof::internal::FileIdentity;
using hbmprof::internal::FileOutput;
using hbmprof::internal::FileRules;
using hbmprof::internal::IdentityOf;
using hbmprof::internal::kAsAnyCommand;
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

// Runs `body` in a child process and returns its exit code, or 128 + the signal that ended it.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Prints the problem in a child process, where the reports of GoogleTest are lost.
int Fail(const std::string& what) {
  std::cerr << what << std::endl;
  return 1;
}

class AtomicFile : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_ = hbmprof_test::NewDirectory();
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

TEST_F(AtomicFile, WritesAFileInParts) {
  std::string expected;
  const absl::Status status = WriteFileAtomically(Path("a"), [&](FileOutput& output) {
    expected.clear();
    absl::Status written;
    for (const size_t size : {3, 60'000, 10'000, 200'000, 0, 5}) {
      const std::string part(size, static_cast<char>('a' + expected.size() % 26));
      if (written.ok()) written = output.Append(part);
      expected += part;
      EXPECT_EQ(output.size(), static_cast<int64_t>(expected.size()));
      EXPECT_FALSE(std::ifstream(Path("a")).good());
    }
    for (const size_t offset : {size_t{1}, size_t{65'000}, expected.size() - 2}) {
      if (written.ok()) written = output.Overwrite(static_cast<int64_t>(offset), "XY");
      expected.replace(offset, 2, "XY");
    }
    if (written.ok()) written = output.Append("end");
    expected += "end";
    return written;
  });
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_TRUE(Contents(Path("a")) == expected);
}

TEST_F(AtomicFile, ErrorOfAPartLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  const absl::Status status = WriteFileAtomically(Path("a"), [](FileOutput& output) {
    EXPECT_EQ(output.Append(std::string(100'000, 'x')), absl::OkStatus());
    return absl::ResourceExhaustedError("too large for the format");
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("too large for the format"));
  EXPECT_EQ(Contents(Path("a")), "old");
  EXPECT_THAT(Names(directory_), ElementsAre("a"));
}

TEST_F(AtomicFile, AcceptsRelativePaths) {
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

TEST_F(AtomicFile, AcceptsLongestName) {
  const std::string longest(255, 'n');
  ASSERT_TRUE(WriteFileAtomically(Path(longest), "x").ok());
  EXPECT_THAT(Names(directory_), ElementsAre(longest));
  EXPECT_EQ(WriteFileAtomically(Path(longest + "n"), "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(directory_), ElementsAre(longest));
}

TEST_F(AtomicFile, NewFileHasRequestedMode) {
  const auto mode_with = [&](const FileRules& rules) {
    const int code = InChild([&] {
      umask(027);
      return WriteFileAtomically(Path("a"), "x", rules).ok() ? 0 : 1;
    });
    struct stat info = {};
    EXPECT_EQ(code, 0);
    EXPECT_EQ(stat(Path("a").c_str(), &info), 0);
    EXPECT_EQ(unlink(Path("a").c_str()), 0);
    return info.st_mode & 07777;
  };
  EXPECT_EQ(mode_with({}), 0600u);
  FileRules wide;
  wide.mode.bits = 0666;
  EXPECT_EQ(mode_with(wide), 0666u);
  EXPECT_EQ(mode_with(kAsAnyCommand), 0640u) << "the umask takes from it";
}

TEST_F(AtomicFile, RefusesIrregularFiles) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("file", Path("link").c_str()), 0);
  for (const std::string& path :
       {std::string("/dev/null"), directory_, Path("link"), Path("pipe"), directory_ + "/", std::string()}) {
    const absl::Status status = WriteFileAtomically(path, "x");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  struct stat info;
  ASSERT_EQ(stat("/dev/null", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
  EXPECT_THAT(Names(directory_), ElementsAre("link", "pipe"));
}

TEST_F(AtomicFile, ErrorIfDirectoryIsMissing) {
  const absl::Status status = WriteFileAtomically(Path("no/such/file"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("no/such/file")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));

  std::ofstream(Path("file")) << "x";
  EXPECT_EQ(WriteFileAtomically(Path("file/below"), "x").code(), absl::StatusCode::kNotFound);
}

TEST_F(AtomicFile, ErrorIfDirectoryIsNotWritable) {
  const int code = InChild([&] {
    if (!WriteFileAtomically(Path("a"), "old", kAsAnyCommand).ok() || chmod(directory_.c_str(), 0500) != 0) return 2;
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

// In a directory like /tmp, in which another user has made files.
TEST_F(AtomicFile, RefusesOtherUsersFileInSharedDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to others";
  ASSERT_EQ(chmod(directory_.c_str(), 01777), 0);
  std::ofstream(Path("file")) << "old";
  ASSERT_EQ(chown(Path("file").c_str(), 65534, 65534), 0);
  const absl::Status status = WriteFileAtomically(Path("file"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of another user"));
  EXPECT_EQ(Contents(Path("file")), "old");
  // A file of the owner of the directory may be replaced. If not everyone can write to the directory, any may.
  ASSERT_EQ(chown(directory_.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(WriteFileAtomically(Path("file"), "1").ok());
  ASSERT_EQ(chown(directory_.c_str(), 0, 0), 0);
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  EXPECT_TRUE(WriteFileAtomically(Path("file"), "2").ok());
}

TEST_F(AtomicFile, KeepsModeAndOwner) {
  std::ofstream(Path("a")) << "old";
  ASSERT_EQ(chmod(Path("a").c_str(), 06640), 0);
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(Path("a").c_str(), 65534, 65533), 0);
  }
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new").ok());
  struct stat info;
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  if (root) {
    EXPECT_EQ(info.st_uid, 65534u);
    EXPECT_EQ(info.st_gid, 65533u);
  }
}

TEST_F(AtomicFile, GrantsNothingToNewGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to others";
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  std::ofstream(Path("a")) << "old";
  ASSERT_EQ(chmod(Path("a").c_str(), 0664), 0);
  ASSERT_EQ(chown(Path("a").c_str(), 0, 12345), 0);
  ASSERT_EQ(InChild([&] {
              if (setgid(65534) != 0 || setuid(65534) != 0) return 2;
              const absl::Status status = WriteFileAtomically(Path("a"), "new");
              return status.ok() ? 0 : Fail(status.ToString());
            }),
            0);
  struct stat info;
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 65534u) << "the group could not be kept";
  EXPECT_EQ(info.st_mode & 0777, 0644u);
}

TEST_F(AtomicFile, ReplacesOnlyAllowedFiles) {
  FileRules only_new;
  only_new.must_be_new = true;
  FileIdentity first;
  only_new.written = &first;
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "1", only_new).ok());
  EXPECT_EQ(first, IdentityOf(Path("a")));
  EXPECT_EQ(WriteFileAtomically(Path("a"), "2", only_new).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(symlink("nowhere", Path("link").c_str()), 0);
  EXPECT_EQ(WriteFileAtomically(Path("link"), "2", only_new).code(), absl::StatusCode::kAlreadyExists);

  FileRules over_first;
  over_first.only_over = first;
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "3", over_first).ok());
  EXPECT_EQ(WriteFileAtomically(Path("a"), "4", over_first).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Contents(Path("a")), "3");
  FileRules over_nothing;
  over_nothing.only_over = FileIdentity();
  EXPECT_EQ(WriteFileAtomically(Path("a"), "5", over_nothing).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(WriteFileAtomically(Path("b"), "5", over_nothing).ok());
  EXPECT_THAT(Names(directory_), ElementsAre("a", "b", "link"));
}

TEST_F(AtomicFile, OneOfManyWritersCreatesTheFile) {
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      FileRules rules;
      rules.must_be_new = true;
      const absl::Status status = WriteFileAtomically(Path("a"), "x", rules);
      if (status.ok()) ++made;
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kAlreadyExists) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_THAT(Names(directory_), ElementsAre("a"));
}

// A program that prints although it has closed its standard descriptors.
TEST_F(AtomicFile, NeverUsesStandardDescriptors) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer reports that two threads use descriptor 1, which is what is tested";
#endif
  const int code = InChild([&] {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
    std::atomic<bool> done{false};
    std::thread prints([&] {
      while (!done) static_cast<void>(!write(1, "printed", 7));
    });
    bool same = true;
    for (int i = 0; i < 300 && same; ++i) {
      same = WriteFileAtomically(Path("a"), "written").ok() && Contents(Path("a")) == "written";
    }
    done = true;
    prints.join();
    FileRules rules;
    FileDescriptor kept;
    rules.keep_open = &kept;
    if (!WriteFileAtomically(Path("a"), "", rules).ok() || kept.get() < 3) return 2;
    for (int fd = 0; fd <= 2; ++fd) {
      if (fcntl(fd, F_GETFD) != -1) return 3;
    }
    return same ? 0 : 4;
  });
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

TEST_F(AtomicFile, KeepsPendingSizeLimitSignal) {
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

TEST_F(AtomicFile, ErrorIfDiskIsFull) {
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

// Makes the system call `number` of this process fail with `error` from now on.
bool Forbid(long number, int error) {
  const sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), const_cast<sock_filter*>(program)};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// A feature that a system does not have, and a function that removes the feature for a process.
struct Lack {
  const char* name;
  std::function<bool()> pretend;
};

void PrintTo(const Lack& lack, std::ostream* out) { *out << lack.name; }

const Lack kLacks[] = {
    {"Nothing", [] { return true; }},
    {"RenamingWithoutReplacing", [] { return Forbid(SYS_renameat2, EINVAL); }},
    {"AllOfThem", [] { return Forbid(SYS_renameat2, EINVAL) && Forbid(SYS_linkat, EPERM); }},
    {"Locks", [] { return Forbid(SYS_flock, ENOLCK); }},
};

class AtomicFileOnSystem : public AtomicFile, public testing::WithParamInterface<Lack> {};

TEST_P(AtomicFileOnSystem, WritesWithoutSystemFeature) {
  EXPECT_EQ(InChild([&] {
              if (!GetParam().pretend()) return Fail("seccomp");
              for (const char* text : {"old", "new"}) {
                const absl::Status status = WriteFileAtomically(Path("a"), text);
                if (!status.ok()) return Fail(status.ToString());
                if (Contents(Path("a")) != text) return Fail("wrong contents");
                if (Names(directory_).size() != 1) return Fail("a temporary file stayed");
              }
              FileRules rules;
              rules.must_be_new = true;
              absl::Status status = WriteFileAtomically(Path("a"), "newer", rules);
              if (status.code() != absl::StatusCode::kAlreadyExists) return Fail(status.ToString());
              status = WriteFileAtomically(Path("b"), "newer", rules);
              if (!status.ok()) return Fail(status.ToString());
              if (Names(directory_).size() != 2) return Fail("a temporary file stayed");
              unlink(Path("a").c_str());
              unlink(Path("b").c_str());
              std::ofstream(Path("a")) << "old";
              return WriteBeyondTheFileSizeLimit(Path("a"), directory_);
            }),
            0);
}

// Kills a process that writes the file `name` again and again: `times` times, each at another moment. Returns how often
// that left a file besides `name`.
int KillWhileWriting(const std::string& directory, const Lack& lack, bool new_each_time, int times) {
  int left = 0;
  for (int round = 0; round < times; ++round) {
    int ready[2];
    if (pipe(ready) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
      if (!lack.pretend()) _exit(1);
      static_cast<void>(!write(ready[1], "", 1));
      for (int i = 0;; ++i) {
        const std::string name = new_each_time ? std::to_string(round) + "." + std::to_string(i) : "a";
        if (!WriteFileAtomically(directory + "/" + name, "contents").ok()) _exit(1);
      }
    }
    char byte;
    static_cast<void>(!read(ready[0], &byte, 1));
    close(ready[0]);
    close(ready[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(37 * (round % 200)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) return -1;
    for (const std::string& name : Names(directory)) {
      if (name[0] == '.') ++left;
      if (name[0] != '.' && Contents(directory + "/" + name) != "contents") return -2;
      if (new_each_time && name[0] != '.') unlink((directory + "/" + name).c_str());
    }
  }
  return left;
}

// Not on systems without locks, because there it is not known whether the writer of a file is alive.
class AtomicFileKilled : public AtomicFileOnSystem {};

TEST_P(AtomicFileKilled, NextWriterRemovesFilesOfKilledOne) {
  for (const bool new_each_time : {true, false}) {
    const int left = KillWhileWriting(directory_, GetParam(), new_each_time, 200);
    ASSERT_GE(left, 0);
    std::cout << "a temporary file was left " << left << " times of 200" << std::endl;
    ASSERT_TRUE(WriteFileAtomically(Path("a"), "x").ok());
    EXPECT_THAT(Names(directory_), ElementsAre("a"));
    unlink(Path("a").c_str());
  }
}

std::string NameOf(const testing::TestParamInfo<Lack>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Without, AtomicFileOnSystem, testing::ValuesIn(kLacks), NameOf);
INSTANTIATE_TEST_SUITE_P(Without, AtomicFileKilled, testing::ValuesIn(kLacks, std::end(kLacks) - 1), NameOf);

TEST_F(AtomicFile, KeepsTemporaryFileOfLiveWriter) {
  for (const char* name : {".hbmprof.0.tmp", ".hbmprof.3.tmp", ".hbmprof.4.tmp"}) std::ofstream(Path(name)) << "x";
  const int living = open(Path(".hbmprof.3.tmp").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(living, LOCK_EX), 0);
  ASSERT_EQ(mkdir(Path(".hbmprof.1.tmp").c_str(), 0700), 0) << "not a file of ours";
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(WriteFileAtomically(Path("a"), "x").ok());
  EXPECT_THAT(Names(directory_), ElementsAre(".hbmprof.1.tmp", ".hbmprof.3.tmp", "a"));
  close(living);
}

// A writer that is killed at any moment leaves one of the complete contents that it wrote.
TEST_F(AtomicFile, IsCompleteWheneverTheWriterIsKilled) {
  constexpr size_t kSize = 8 << 20;
  const std::string path = Path("a");
  int partial = 0;
  int seen = 0;
  for (int round = 0; round < (hbmprof_test::kSanitized ? 5 : 20); ++round) {
    unlink(path.c_str());
    const pid_t child = fork();
    if (child == 0) {
      for (char letter = 'a';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
        if (!WriteFileAtomically(path, std::string(kSize, letter)).ok()) _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + (hbmprof_test::kSanitized ? 14800 : 3700) * round));
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
}

TEST_F(AtomicFile, ConcurrentWritersLeaveOneFile) {
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
