#include "src/core/run_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "src/base/descriptor.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {
namespace {

constexpr std::string_view kVariables[] = {
    // torchrun, accelerate, DeepSpeed, Ray
    "RANK", "LOCAL_RANK", "WORLD_SIZE",
    // Open MPI; other MPIs and PMIx; MVAPICH; Slurm
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_ID",
    // Kubernetes: names that its documentation gives to fields of the pod
    "POD_NAME", "POD_NAMESPACE", "POD_UID", "CONTAINER_NAME"};

constexpr char kNamespaceFile[] = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

// Returns the first bytes of the string at `from`, without those that cannot be read.
std::string StringAt(const char* from) {
  constexpr size_t kMostBytes = 320;
  constexpr uintptr_t kPageBytes = 4096;
  char text[kMostBytes + 1] = {};
  const auto address = reinterpret_cast<uintptr_t>(from);
  // The string may end just before a page that is not mapped.
  const size_t first = std::min<size_t>(kMostBytes, kPageBytes - address % kPageBytes);
  if (!CopyMapped(address, text, first)) return "";
  if (std::memchr(text, 0, first) == nullptr && first < kMostBytes &&
      !CopyMapped(address + first, text + first, kMostBytes - first)) {
    text[first] = '\0';
  }
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> RunEnvironment() {
  constexpr size_t kMostVariables = 65536;
  std::string values[std::size(kVariables)];
  // getenv must not run while another thread calls setenv, which can free what it reads.
  char** const variables = environ;
  for (size_t i = 0; variables != nullptr && i < kMostVariables; ++i) {
    const char* entry = nullptr;
    if (!CopyMapped(reinterpret_cast<uintptr_t>(variables + i), &entry, sizeof(entry)) || entry == nullptr) break;
    const std::string text = StringAt(entry);
    const size_t equals = text.find('=');
    if (equals == text.npos) continue;
    const auto* const known =
        std::find(std::begin(kVariables), std::end(kVariables), std::string_view(text).substr(0, equals));
    if (known == std::end(kVariables)) continue;
    std::string& value = values[known - std::begin(kVariables)];
    if (value.empty()) value = text.substr(equals + 1);  // the first one, as for getenv
  }
  std::vector<std::pair<std::string, std::string>> result;
  for (size_t i = 0; i < std::size(kVariables); ++i) {
    if (kVariables[i] == "POD_NAMESPACE" && values[i].empty()) values[i] = ReadProcFile(kNamespaceFile).substr(0, 256);
    if (!values[i].empty()) result.emplace_back(kVariables[i], std::move(values[i]));
  }
  return result;
}

}  // namespace hbmprof::internal
