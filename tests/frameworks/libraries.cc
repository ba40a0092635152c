// The functions of cuBLAS, cuBLASLt and cuDNN that need an answer. They are compiled into every double of a library of
// NVIDIA's (make_doubles.py); all others return 0. A handle is memory, nothing is computed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

int New(void** out) {
  *out = std::calloc(1, 4096);
  return 0;
}
int Free(void* memory) {
  std::free(memory);
  return 0;
}
template <typename T>
int Answer(T* out, T value) {
  *out = value;
  return 0;
}

// cublasLtMatmulHeuristicResult_t
struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

constexpr size_t kVersion = 130401;
constexpr int kCudnnVersion = 92600;

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return New(handle); }
int cublasGetVersion_v2(void*, int* version) { return Answer(version, static_cast<int>(kVersion)); }
int cublasGetProperty(int, int* value) { return Answer(value, 13); }
int cublasGetPointerMode_v2(void*, int* mode) { return Answer(mode, 0); }
int cublasGetMathMode(void*, int* mode) { return Answer(mode, 0); }
int cublasGetStream_v2(void*, void** stream) { return Answer<void*>(stream, nullptr); }
const char* cublasGetStatusString(int) { return "of the double"; }
const char* cublasGetStatusName(int) { return "of the double"; }

int cublasLtCreate(void** handle) { return New(handle); }
int cublasLtMatmulDescCreate(void** descriptor, int, int) { return New(descriptor); }
int cublasLtMatmulDescDestroy(void* descriptor) { return Free(descriptor); }
int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) { return New(layout); }
int cublasLtMatrixLayoutDestroy(void* layout) { return Free(layout); }
int cublasLtMatmulPreferenceCreate(void** preference) { return New(preference); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return Free(preference); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, Heuristic* results,
                                   int* found) {
  std::memset(results, 0, sizeof(*results));
  return Answer(found, 1);
}
size_t cublasLtGetVersion() { return kVersion; }
size_t cublasLtGetCudartVersion() { return 13000; }

size_t cudnnGetVersion() { return kCudnnVersion; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int part, int* value) {
  const int parts[] = {kCudnnVersion / 10000, kCudnnVersion / 100 % 100, kCudnnVersion % 100};
  return Answer(value, parts[part]);
}
const char* cudnnGetErrorString(int) { return "of the double"; }
int cudnnCreate(void** handle) { return New(handle); }
}
