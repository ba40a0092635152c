// Descriptors of the library in programs that have closed standard descriptors. The tests run in child processes.
#include "src/base/descriptor.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

// Runs `body` with 0, 1 and 2 closed. Returns its exit code.
int WithStandardDescriptorsClosed(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(DescriptorTest, AboveStandardReturnsNoStandardDescriptor) {
  EXPECT_EQ(WithStandardDescriptorsClosed([] {
              const auto open_null = [] { return open("/dev/null", O_WRONLY); };
              if (AboveStandard(open_null) < 3 || IsOpen(0)) return 1;
              return AboveStandard([] { return open("/dev/null/none", O_WRONLY); }) == -1 && errno == ENOTDIR ? 0 : 2;
            }),
            0);
}

TEST(DescriptorTest, AboveStandardMovesStandardDescriptor) {
  EXPECT_EQ(WithStandardDescriptorsClosed([] {
              const auto close_and_open = [] {
                close(0);  // as if another thread had closed the descriptor that occupies 0
                return open("/dev/null", O_WRONLY);
              };
              return AboveStandard(close_and_open) >= 3 && !IsOpen(0) ? 0 : 1;
            }),
            0);
}

TEST(DescriptorTest, ReadProcFileReadsWholeFile) {
  EXPECT_NE(ReadProcFile("/proc/self/maps").find("[stack]"), std::string::npos);
  EXPECT_EQ(ReadProcFile("/proc/no/such/file"), "");
  EXPECT_EQ(WithStandardDescriptorsClosed([] {
              const bool read = ReadProcFile("/proc/self/maps").size() > 100;
              return read && !IsOpen(0) && !IsOpen(1) ? 0 : 1;
            }),
            0);
}

TEST(DescriptorTest, OtherCodeGetsNoStandardDescriptorWhileTaken) {
  EXPECT_EQ(WithStandardDescriptorsClosed([] {
              const int own = dup2(open("/dev/null", O_WRONLY), 1);
              close(0);
              {
                const StandardDescriptorsTaken taken;
                if (open("/dev/null", O_WRONLY) < 3) return 1;
                char byte = 'x';
                if (read(0, &byte, 1) != -1 || errno != EBADF) return 2;
                if (write(2, &byte, 1) != -1 || errno != EBADF) return 3;
                if (write(own, &byte, 1) != 1) return 4;
                // Meanwhile the program opens a file with the number 2.
                if (dup2(own, 2) != 2) return 5;
              }
              return !IsOpen(0) && IsOpen(1) && IsOpen(2) ? 0 : 6;
            }),
            0);
}

TEST(DescriptorTest, OpenStandardDescriptorsAreNotTaken) {
  const int next = open("/dev/null", O_RDONLY);
  close(next);
  const StandardDescriptorsTaken taken;
  const int same = open("/dev/null", O_RDONLY);
  EXPECT_EQ(same, next);
  close(same);
}

}  // namespace
}  // namespace hbmprof::internal
