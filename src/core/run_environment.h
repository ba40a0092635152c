// The place of this process in a distributed run, and in a cluster: from its environment.
#ifndef HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_
#define HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_

#include <string>
#include <utility>
#include <vector>

namespace hbmprof::internal {

// Returns the variables of docs/profile.md that the environment has now, with their values, in the order of that page.
// POD_NAMESPACE is also known if Kubernetes has mounted the file that contains it. Other threads may change the
// environment during the call: a value that is being changed can be missing or wrong. Throws std::bad_alloc.
std::vector<std::pair<std::string, std::string>> RunEnvironment();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_RUN_ENVIRONMENT_H_
