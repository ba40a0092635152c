// The place of this process in a distributed run, and in a cluster, and its settings: from its environment.
#ifndef HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_
#define HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hbmprof::internal {

using Variables = std::vector<std::pair<std::string, std::string>>;  // names and values

// Returns the variables of docs/spec/profile.md that the process had in its environment when its program started, with
// the first 256 bytes of their values, in the order of that page. POD_NAMESPACE is also known if Kubernetes has mounted
// the file that contains it. Only the first call opens files. Thread-safe. Throws std::bad_alloc.
const Variables& RunEnvironment();
// The same for an environment in the form of /proc/PID/environ.
Variables RunEnvironmentIn(std::string_view block);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_
