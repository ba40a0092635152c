// Multiplies matrices with cuBLAS, argv[1] "cublas" or "cublaslt", once to warm up and once more. Then it ends with
// all memory allocated (argv[2] "hold") or freed ("free"). Prints "TAKEN GRANULARITY": the decrease of the device's
// free memory from before the second time to the end, and the driver's granularity. With argv[1] "refused" it only
// creates a handle, also without a GPU, and prints the result of cuBLAS.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <string>

#include "tests/gpu/gpu_program.h"

namespace {

constexpr int kSize = 1024;
constexpr size_t kMatrix = sizeof(float) * kSize * kSize;
constexpr size_t kWorkspace = size_t{32} << 20;

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, cublasGetStatusString(status));
  std::exit(1);
}

struct Held {
  void* matrix = nullptr;
  void* workspace = nullptr;
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t lt = nullptr;
};

}  // namespace

extern "C" [[gnu::noinline]] void user_allocates(const std::string& library, Held* out) {
  Held& held = *out;
  const float one = 1;
  CHECK(cudaMalloc(&held.matrix, kMatrix));
  auto* m = static_cast<float*>(held.matrix);
  if (library == "cublas") {
    CHECK(cublasCreate(&held.cublas));
    CHECK(cublasSgemm(held.cublas, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one, m, kSize, m, kSize, &one, m,
                      kSize));
  } else {
    CHECK(cudaMalloc(&held.workspace, kWorkspace));
    CHECK(cublasLtCreate(&held.lt));
    cublasLtMatmulDesc_t multiplication = nullptr;
    cublasLtMatrixLayout_t layout = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    CHECK(cublasLtMatmulDescCreate(&multiplication, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, kSize, kSize, kSize));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                               sizeof(kWorkspace)));
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(held.lt, multiplication, layout, layout, layout, layout, preference, 1, &best,
                                         &found));
    if (found == 0) NotHere("cublasLt knows no way to multiply these");
    CHECK(cublasLtMatmul(held.lt, multiplication, &one, m, layout, m, layout, &one, m, layout, m, layout, &best.algo,
                         held.workspace, kWorkspace, nullptr));
    CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(cublasLtMatrixLayoutDestroy(layout));
    CHECK(cublasLtMatmulDescDestroy(multiplication));
  }
  CHECK(cudaDeviceSynchronize());
}

namespace {

void Free(const Held& held) {
  if (held.cublas != nullptr) CHECK(cublasDestroy(held.cublas));
  if (held.lt != nullptr) CHECK(cublasLtDestroy(held.lt));
  CHECK(cudaFree(held.workspace));
  CHECK(cudaFree(held.matrix));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string library = argc > 1 ? argv[1] : "";
  if (library == "refused") {
    cublasHandle_t handle = nullptr;
    std::printf("cublasCreate: %s\n", cublasGetStatusString(cublasCreate(&handle)));
    cublasLtHandle_t lt = nullptr;
    std::printf("cublasLtCreate: %s\n", cublasGetStatusString(cublasLtCreate(&lt)));
    return 0;
  }
  UsableGpus();
  Held warm;
  user_allocates(library, &warm);
  Free(warm);
  const int64_t before = FreeBytes(1);
  Held held;
  user_allocates(library, &held);
  if (argc > 2 && std::string(argv[2]) == "free") Free(held);
  std::printf("%lld %zu\n", static_cast<long long>(before - FreeBytes(1)), Granularity(0));
  return 0;
}
