// The tracked forms of the CUDA runtime's stream-ordered calls. Compiled twice: by itself for the legacy default
// stream, and by runtime_stream_per_thread.cc for the per-thread default stream.
#include "hbmprof/cuda.h"
#include "src/backends/calls/events.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/backends/cuda/runtime/linked_calls.h"

namespace hbmprof::cuda {
namespace {

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool kIsPerThread = true;
#else
constexpr bool kIsPerThread = false;
#endif

template <typename Call>
cudaError_t AllocateAsync(const Caller& caller, const char* name, void** ptr, size_t bytes, cudaStream_t stream,
                          const Call& call) {
  return internal::TrackAllocation(
      caller, name, bytes, MemoryKind::kDevice, call,
      [&] {
        return internal::DriverBuffer{*ptr, bytes, MemoryKind::kDevice};
      },
      [&](const internal::DriverBuffer&) {
        internal::CudaDriverInProcess& driver = internal::cuda_driver_in_process;
        const bool is_captured = driver.CaptureOf({stream, kIsPerThread}).active;
        return internal::StreamOrderedAttributes(driver, *ptr, is_captured);
      });
}

}  // namespace

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_stream {
#endif

cudaError_t MallocAsync(void** ptr, size_t bytes, cudaStream_t stream) {
  const Caller caller = Caller::OfThisFunction();
  return AllocateAsync(caller, "cudaMallocAsync", ptr, bytes, stream,
                       [&] { return cudaMallocAsync(ptr, bytes, stream); });
}

cudaError_t MallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  const Caller caller = Caller::OfThisFunction();
  return AllocateAsync(caller, "cudaMallocFromPoolAsync", ptr, bytes, stream,
                       [&] { return cudaMallocFromPoolAsync(ptr, bytes, pool, stream); });
}

cudaError_t FreeAsync(void* ptr, cudaStream_t stream) {
  return internal::TrackFree(ptr, [&] { return cudaFreeAsync(ptr, stream); });
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
}  // namespace per_thread_stream
#endif

}  // namespace hbmprof::cuda
