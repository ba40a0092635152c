// The options of the process as NAME=VALUE: environment variables, or lines that replace them. (The environment of a
// running process must not be changed: setenv is not thread-safe.)
#ifndef HBMPROF_SRC_BASE_OPTION_TEXT_H_
#define HBMPROF_SRC_BASE_OPTION_TEXT_H_

#include <cstddef>
#include <functional>
#include <string_view>

namespace hbmprof::internal {

// From now on OptionText looks only at a copy of these `bytes` bytes, lines with at most one for each name. Returns
// false and changes nothing if there is no memory. Texts that OptionText has returned stay valid. Not thread-safe, but
// other threads may call OptionText meanwhile.
bool ReplaceOptions(const char* lines, size_t bytes);

// Returns the value of the option `name`; null if it is not set, or if the process runs with more rights than its user
// (secure_getenv).
const char* OptionText(const char* name);

// Calls visit(name) for each option: for each line of ReplaceOptions or, if there are none, for each variable of the
// environment. In a process that runs with more rights than its user, the environment is left out. No thread may change
// the environment meanwhile.
void ForEachOptionName(const std::function<void(std::string_view name)>& visit);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_OPTION_TEXT_H_
