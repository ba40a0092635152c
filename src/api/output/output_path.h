// Patterns for the paths of profiles.
#ifndef HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_
#define HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_

#include <string>
#include <string_view>

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

// Puts a number before ".pb.gz", or at the end of a path without that ending: "/d/a.pb.gz" and 2 give "/d/a.2.pb.gz".
std::string WithNumber(std::string_view path, int number);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_OUTPUT_PATH_H_
