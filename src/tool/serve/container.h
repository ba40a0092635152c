// The container and the pod of a process, for the labels of its metrics.
#ifndef HBMPROF_SRC_TOOL_SERVE_CONTAINER_H_
#define HBMPROF_SRC_TOOL_SERVE_CONTAINER_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

// What the path of a control group contains: ids, not names.
struct ContainerIds {
  std::string container;  // 64 hexadecimal digits; "" if the process is in no container
  std::string pod;        // the UID of the pod; "" if the process is in no pod
};

// Returns what `control_group`, the text of /proc/PID/cgroup, says. It can be that of version 1 or 2 of control groups,
// and the paths those of Docker, containerd, CRI-O, Podman and Kubernetes, with systemd's names of groups or without.
// Of nested containers, returns the innermost one.
ContainerIds ContainerIdsIn(std::string_view control_group);

// Returns labels and their values: container_id and pod_uid, from the control group; container, pod and namespace, as
// far as the process knows them (docs/serve.md). A label that is not known is left out.
std::vector<std::pair<std::string, std::string>> ContainerLabels(const LiveProcess& process);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SERVE_CONTAINER_H_
