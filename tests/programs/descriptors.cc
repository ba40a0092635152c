// descriptors: a daemon that closes every descriptor, and opens files of its own, while threads record through code
// made at run time. Only the program writes to its files and closes them.

#include <fcntl.h>
#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/programs/program.h"
#include "tests/support/made_code.h"

namespace {

using hbmprof_test::MadeCode;

void RecordOne() {
  static std::atomic<uint64_t> next{0};
  CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(1, next.fetch_add(1)), 10));
}

// Records through frames without unwind information, with every kind of frame pointer. An unwinder has to check these.
void RecordThroughMadeCode() {
  static const MadeCode with(MadeCode::kWithFramePointer);
  static const MadeCode without(MadeCode::kWithoutFramePointer);
  static const MadeCode other(MadeCode::kWithOtherFramePointer);
  for (int i = 0; i < 100; ++i) {
    with.Call(RecordOne);
    with.Call(without, RecordOne);
    const std::vector<uintptr_t> block(5000 + 500 * static_cast<size_t>(i));  // on pages never seen before
    other.Call(RecordOne, &block[block.size() / 2]);
  }
}

}  // namespace

int main() {
  LimitTime();
  RecordThroughMadeCode();
  constexpr int kFiles = 12;
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  struct File {
    int fd;
    struct stat status;
  };
  File files[kFiles];
  for (File& file : files) {
    file.fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK_THAT(file.fd >= 3);
    CHECK_THAT(fstat(file.fd, &file.status) == 0);
  }
  RecordThroughMadeCode();
  std::thread(RecordThroughMadeCode).join();
  for (const File& file : files) {
    struct stat status;
    CHECK_THAT(fstat(file.fd, &status) == 0);
    CHECK_THAT(status.st_dev == file.status.st_dev && status.st_ino == file.status.st_ino);
    CHECK_THAT(status.st_size == 0);  // nothing was written
    CHECK_THAT(close(file.fd) == 0);
  }
  std::puts("done");
}
