// The stream-ordered calls for programs built for the per-thread default stream: the runtime's headers then name other
// functions, and ours live in hbmprof::cuda::per_thread_stream.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1
#include "src/backends/cuda/runtime_stream.cc"  // NOLINT: the same text, other functions
