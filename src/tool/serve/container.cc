// See container.h.
#include "src/tool/serve/container.h"

#include <re2/re2.h>

#include "src/base/descriptor.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

ContainerIds ContainerIdsIn(std::string_view control_group) {
  // A part of a path: the id of a container, alone or as "docker-ID.scope". The groups of the programs that supervise a
  // container ("crio-conmon-ID.scope") have its id too, but the container is not in them.
  static const RE2 kContainer(R"((?:[a-z-]*-)?([0-9a-f]{64})(?:\.scope)?)");
  static const RE2 kSupervisor(R"(.*conmon.*)");
  // "podUID", or "kubepods-burstable-podUID.slice" with '_' for '-'. The UID of a static pod is a hash.
  static const RE2 kPod(
      R"((?:[a-z-]*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?)");
  ContainerIds ids;
  // Lines are "NUMBER:CONTROLLERS:PATH". In version 1 each controller has a line, and one of them can have no
  // container.
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(control_group.data(), control_group.size()), '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || !ids.container.empty()) continue;
    // containerd also writes SLICE:cri-containerd:ID.
    for (const absl::string_view text : absl::StrSplit(parts[2], absl::ByAnyChar("/:"))) {
      const re2::StringPiece part(text.data(), text.size());
      std::string id;
      if (RE2::FullMatch(part, kPod, &id)) {
        ids.pod = id;
      } else if (RE2::FullMatch(part, kContainer, &id) && !RE2::FullMatch(part, kSupervisor)) {
        ids.container = id;
      }
    }
  }
  std::replace(ids.pod.begin(), ids.pod.end(), '_', '-');
  return ids;
}

std::vector<std::pair<std::string, std::string>> ContainerLabels(const LiveProcess& process) {
  // In a container, the process itself often sees only "0::/". From here, its group has the whole path.
  ContainerIds ids;
  constexpr int kMillis = 200;
  if (const int64_t pid = PidOf(process.socket, kMillis); pid > 0) {
    ids = ContainerIdsIn(internal::ReadProcFile(Cat("/proc/", pid, "/cgroup").c_str()));
  }
  if (ids.container.empty()) ids = ContainerIdsIn(process.control_group);
  const auto variable = [&](const char* name) {
    const auto found = process.environment.find(name);
    return found == process.environment.end() ? std::string() : found->second;
  };
  std::string pod = variable("POD_NAME");
  // Kubernetes gives a pod its name as the name of the host.
  if (pod.empty() && !ids.pod.empty()) pod = process.host;
  std::vector<std::pair<std::string, std::string>> labels;
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) labels.emplace_back(name, std::move(value));
  };
  add("container", variable("CONTAINER_NAME"));
  add("pod", std::move(pod));
  add("namespace", variable("POD_NAMESPACE"));
  add("container_id", std::move(ids.container));
  add("pod_uid", ids.pod.empty() ? variable("POD_UID") : std::move(ids.pod));
  return labels;
}

}  // namespace hbmprof::tool
