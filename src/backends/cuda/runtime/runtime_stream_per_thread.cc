// The stream-ordered calls for programs that are built for the per-thread default stream. With this macro the runtime's
// headers declare the per-thread functions, and hbmprof's functions are in hbmprof::cuda::per_thread_stream.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1
#include "src/backends/cuda/runtime/runtime_stream.cc"  // NOLINT: compiled again
