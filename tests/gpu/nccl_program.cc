// Sums a buffer over all GPUs with NCCL, in this one process (also on a single GPU), once to warm up and once more.
// Then as cublas_program.cc: argv[1] "nccl", argv[2] "hold" or "free"; "TAKEN GRANULARITY", over all GPUs; or
// "refused".
#include <nccl.h>

#include <string>
#include <vector>

#include "tests/gpu/gpu_program.h"

namespace {

constexpr size_t kCount = size_t{1} << 20;

void Check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
  std::exit(1);
}

struct Held {
  std::vector<ncclComm_t> communicators;
  std::vector<void*> buffers;
};

}  // namespace

extern "C" [[gnu::noinline]] void user_allocates(int devices, Held* held) {
  held->communicators.resize(static_cast<size_t>(devices));
  CHECK(ncclCommInitAll(held->communicators.data(), devices, nullptr));
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&held->buffers.emplace_back(), kCount * sizeof(float)));
  }
  CHECK(ncclGroupStart());
  for (size_t i = 0; i < held->buffers.size(); ++i) {
    CHECK(cudaSetDevice(static_cast<int>(i)));
    CHECK(ncclAllReduce(held->buffers[i], held->buffers[i], kCount, ncclFloat, ncclSum, held->communicators[i],
                        cudaStreamPerThread));
  }
  CHECK(ncclGroupEnd());
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaDeviceSynchronize());
  }
}

namespace {

void Free(const Held& held) {
  for (const ncclComm_t communicator : held.communicators) CHECK(ncclCommDestroy(communicator));
  for (size_t i = 0; i < held.buffers.size(); ++i) {
    CHECK(cudaSetDevice(static_cast<int>(i)));
    CHECK(cudaFree(held.buffers[i]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // there may be no network
  if (argc > 1 && std::string(argv[1]) == "refused") {
    ncclComm_t communicator = nullptr;
    const int device = 0;
    std::printf("ncclCommInitAll: %s\n", ncclGetErrorString(ncclCommInitAll(&communicator, 1, &device)));
    return 0;
  }
  const int devices = UsableGpus();
  {
    Held warm;
    user_allocates(devices, &warm);
    Free(warm);
  }
  const int64_t before = FreeBytes(devices);
  Held held;
  user_allocates(devices, &held);
  if (argc > 2 && std::string(argv[2]) == "free") Free(held);
  std::printf("%lld %zu\n", static_cast<long long>(before - FreeBytes(devices)), Granularity(0));
  return 0;
}
