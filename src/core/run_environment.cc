#include "src/core/run_environment.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>

#include "src/base/descriptor.h"
#include "src/base/lock_free_lazy.h"

namespace hbmprof::internal {
namespace {

constexpr std::string_view kVariables[] = {
    // torchrun, accelerate, DeepSpeed, Ray
    "RANK", "LOCAL_RANK", "WORLD_SIZE",
    // Open MPI; other MPIs and PMIx; MVAPICH; Slurm
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_ID",
    // Kubernetes: names that its documentation gives to fields of the pod; settings of PyTorch's allocator
    "POD_NAME", "POD_NAMESPACE", "POD_UID", "CONTAINER_NAME", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF"};

constexpr char kNamespaceFile[] = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

}  // namespace

Variables RunEnvironmentIn(std::string_view block) {
  constexpr size_t kMostBytes = 256;
  std::string_view values[std::size(kVariables)];
  for (size_t end = 0; !block.empty(); block.remove_prefix(std::min(end + 1, block.size()))) {
    end = std::min(block.find('\0'), block.size());
    const std::string_view text = block.substr(0, end);
    const size_t equals = text.find('=');
    if (equals == text.npos) continue;
    const auto* const known = std::find(std::begin(kVariables), std::end(kVariables), text.substr(0, equals));
    if (known == std::end(kVariables)) continue;
    std::string_view& value = values[known - std::begin(kVariables)];
    if (value.empty()) value = text.substr(equals + 1, kMostBytes);  // the first one, as for getenv
  }
  Variables result;
  for (size_t i = 0; i < std::size(kVariables); ++i) {
    std::string value(values[i]);
    if (kVariables[i] == "POD_NAMESPACE" && value.empty()) value = ReadProcFile(kNamespaceFile).substr(0, kMostBytes);
    if (!value.empty()) result.emplace_back(kVariables[i], std::move(value));
  }
  return result;
}

// getenv must not run while another thread calls setenv, which can free what it reads.
const Variables& RunEnvironment() {
  static LockFreeLazy<Variables> variables;
  return *variables.Get(
      [] { return std::make_unique<Variables>(RunEnvironmentIn(ReadProcFile("/proc/self/environ"))); });
}

}  // namespace hbmprof::internal
