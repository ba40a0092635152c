// Patterns for the paths of files.
#ifndef HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_
#define HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hbmprof::internal {

// A path in which "%p" is replaced by the process id, "%n" by a number and "%%" by a percent sign. Any other percent
// sign is kept.
class OutputPattern {
 public:
  explicit OutputPattern(std::string_view pattern);

  // Returns the path with `number` for "%n".
  std::string Path(int number) const;

  bool has_process() const { return has_process_; }
  bool has_number() const { return has_number_; }

 private:
  const std::string pattern_;
  bool has_process_ = false;
  bool has_number_ = false;
};

// Returns 0, 1, 2, ...: the next number at each call in the process. Any thread may call it.
int NextOutputNumber();

// Puts a text before ".pb.gz", or at the end of a path without that ending: "/d/a.pb.gz" and ".2" give "/d/a.2.pb.gz".
std::string BeforeEnding(std::string_view path, std::string_view text);

// Returns the path of the recording beside a profile: "/d/a.hbmrec" for "/d/a.pb.gz".
std::string RecordingBeside(std::string_view profile);

// Calls use(path, attempt) with the path of `pattern`, and returns its result. If `must_be_new` is true and use()
// returns kAlreadyExists, calls it again with the next path, up to a million times: with the next number for "%n", or
// with ".1", ".2", ... before the ending.
absl::Status WithFreeName(const OutputPattern& pattern, bool must_be_new,
                          const std::function<absl::Status(const std::string& path, int attempt)>& use);

// Returns kAlreadyExists if there is a file, a directory or a link of this name, else OK.
absl::Status CheckIsNew(const std::string& path);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_
