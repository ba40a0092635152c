// Patterns in the paths of profiles.
#ifndef HBMPROF_SRC_API_OUTPUT_PATH_H_
#define HBMPROF_SRC_API_OUTPUT_PATH_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// In a pattern "%p" stands for the process id, "%n" for a number, "%%" for a percent sign. Any other percent sign
// stays.
class OutputPattern {
 public:
  explicit OutputPattern(std::string_view pattern);

  // With this number where "%n" is.
  std::string Path(int number) const;

  bool has_process() const { return has_process_; }
  bool has_number() const { return has_number_; }

 private:
  const std::string pattern_;
  bool has_process_ = false;
  bool has_number_ = false;
};

// Counts up from 0 within the process. Any thread.
int NextOutputNumber();

// "/d/a.pb.gz" with 2 is "/d/a.2.pb.gz"; with another ending "/d/a.2".
std::string WithNumber(std::string_view path, int number);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_PATH_H_
