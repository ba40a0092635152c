// The container and the pod in the path of a control group, in the forms of the programs that make containers.
#include "src/tool/serve/container.h"

#include <gtest/gtest.h>

#include <string>

namespace hbmprof_test {
namespace {

using hbmprof::tool::ContainerIds;
using hbmprof::tool::ContainerIdsIn;

const std::string kId = "4f1c0f8d9fa4f07a13c3a33b7b1f2d5e6a7b8c9d0e1f2a3b4c5d6e7f80910111";
const std::string kOuter(64, 'e');
const std::string kUid = "7d3b1c9e-0a1b-4c2d-9e8f-001122334455";
const std::string kUidInSlice = "7d3b1c9e_0a1b_4c2d_9e8f_001122334455";
const std::string kHash = "0123456789abcdef0123456789abcdef";

TEST(ContainerIdsTest, AreFoundInTheFormsOfAllRuntimes) {
  const struct {
    const char* runtime;
    std::string text;
    std::string container;
    std::string pod;
  } cases[] = {
      {"none, version 2", "0::/user.slice/user-1000.slice/session-3.scope\n", "", ""},
      {"none, in a name space of groups", "0::/\n", "", ""},
      {"Docker, version 2, systemd", "0::/system.slice/docker-" + kId + ".scope\n", kId, ""},
      {"Docker, version 2, no systemd", "0::/docker/" + kId + "\n", kId, ""},
      {"Docker, version 1", "12:pids:/docker/" + kId + "\n11:memory:/docker/" + kId + "\n1:name=systemd:/docker/" + kId,
       kId, ""},
      {"only some controllers of version 1", "9:name=systemd:/\n8:pids:/docker/" + kId + "\n0::/\n", kId, ""},
      {"containerd in Kubernetes, version 2, systemd",
       "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + kUidInSlice + ".slice/cri-containerd-" +
           kId + ".scope\n",
       kId, kUid},
      {"guaranteed", "0::/kubepods.slice/kubepods-pod" + kUidInSlice + ".slice/cri-containerd-" + kId + ".scope\n", kId,
       kUid},
      {"Kubernetes, version 1, no systemd", "3:cpu:/kubepods/besteffort/pod" + kUid + "/" + kId + "\n", kId, kUid},
      {"a static pod", "0::/kubepods/burstable/pod" + kHash + "/" + kId + "\n", kId, kHash},
      {"CRI-O", "0::/kubepods.slice/kubepods-pod" + kUidInSlice + ".slice/crio-" + kId + ".scope/container\n", kId,
       kUid},
      {"the monitor of CRI-O",
       "0::/kubepods.slice/kubepods-pod" + kUidInSlice + ".slice/crio-conmon-" + kId + ".scope\n", "", kUid},
      {"kind, nested in Docker",
       "0::/system.slice/docker-" + kOuter + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" +
           kUidInSlice + ".slice/cri-containerd-" + kId + ".scope\n",
       kId, kUid},
      {"seen from another container", "0::/../cri-containerd-" + kId + ".scope\n", kId, ""},
      {"Podman", "0::/machine.slice/libpod-" + kId + ".scope/container\n", kId, ""},
      {"Podman of a user",
       "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId + ".scope/container\n", kId, ""},
      {"containerd with cgroupfs of containerd",
       "0::/system.slice/containerd.service/kubepods-burstable-pod" + kUidInSlice + ".slice:cri-containerd:" + kId +
           "\n",
       kId, kUid},
      {"Amazon ECS", "0::/ecs/0123456789abcdef0123456789abcdef/" + kId + "\n", kId, ""},
      {"a colon in a path", "0::/a:b/docker-" + kId + ".scope\n", kId, ""},
      {"too short", "0::/docker/" + kId.substr(1) + "\n", "", ""},
      {"not hexadecimal", "0::/docker/" + std::string(64, 'g') + "\n", "", ""},
      {"damaged", "::/docker\n0\n\n:\n" + std::string(100, ':'), "", ""},
      {"empty", "", "", ""},
  };
  for (const auto& one : cases) {
    const ContainerIds ids = ContainerIdsIn(one.text);
    EXPECT_EQ(ids.container, one.container) << one.runtime;
    EXPECT_EQ(ids.pod, one.pod) << one.runtime;
  }
}

}  // namespace
}  // namespace hbmprof_test
