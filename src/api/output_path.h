// Patterns in the paths of profiles.
#ifndef HBMPROF_SRC_API_OUTPUT_PATH_H_
#define HBMPROF_SRC_API_OUTPUT_PATH_H_

#include <string>
#include <string_view>

namespace hbmprof::internal {

// `pattern` with "%p" replaced by the process id, "%n" by a number that counts up from 0 with each pattern that holds
// one, "%%" by a percent sign. Any other percent sign stays.
std::string ExpandOutputPath(std::string_view pattern);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_PATH_H_
