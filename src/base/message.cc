#include "src/base/message.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/base/cut_text.h"
#include "src/base/kept_errno.h"
#include "src/base/no_cancellation.h"
#include "src/base/write_all.h"

namespace hbmprof::internal {
namespace {

// Whether UseStandardError was called. The constructor of another library can cause a message before that.
bool is_known = false;
// The file that descriptor 2 referred to at the last call of UseStandardError.
bool was_open = false;
dev_t device;
ino_t inode;

// Runs before the constructors of global objects, which may record events and print messages.
[[gnu::constructor(101)]] void WhenLoaded() { UseStandardError(); }

constexpr size_t kMostBytes = 1024;  // of a part that is not the message's own text

// Returns whether a message in the file `error` would take bytes from the program's own output: both go to one file,
// and its size is limited.
bool TakesFromOutput(const struct stat& error) {
  struct stat output;
  rlimit limit;
  return S_ISREG(error.st_mode) && fstat(STDOUT_FILENO, &output) == 0 && output.st_dev == error.st_dev &&
         output.st_ino == error.st_ino && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

void UseStandardError() {
  is_known = true;
  struct stat info;
  was_open = fstat(STDERR_FILENO, &info) == 0;
  if (!was_open) return;
  device = info.st_dev;
  inode = info.st_ino;
}

void PrintMessage(std::string_view text, std::string_view more, std::string_view still_more,
                  std::string_view end) noexcept {
  const NoCancellation no_cancellation;
  const KeptErrno kept_errno;
  if (!is_known) UseStandardError();
  struct stat info;
  if (was_open && fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode &&
      !TakesFromOutput(info)) {
    char piece[4096];
    size_t used = 0;
    const auto add = [&](std::string_view part) {
      while (!part.empty()) {
        if (used == sizeof(piece)) {
          WriteAll(STDERR_FILENO, {piece, used});
          used = 0;
        }
        const size_t count = std::min(part.size(), sizeof(piece) - used);
        std::memcpy(piece + used, part.data(), count);
        used += count;
        part.remove_prefix(count);
      }
    };
    add(text);
    for (const std::string_view part : {more, still_more, end}) {
      const auto [first, last] = CutMiddle(part, kMostBytes);
      add(first);
      if (!last.empty()) add("...");
      add(last);
    }
    add("\n");
    WriteAll(STDERR_FILENO, {piece, used});
  }
}

}  // namespace hbmprof::internal
