// TrackingResource: records the memory of a memory resource of CCCL (cuda::mr), such as those of RMM.
//
//   hbmprof::adapters::TrackingResource resource(my_resource);     // a copy of my_resource; use this one from here on
//   void* p = resource.allocate(stream, bytes, alignment);         // the concept of newer releases of CCCL
//   void* q = resource.allocate_async(bytes, alignment, stream);   // the concept of CCCL 3.0
//
// A pool on top of a resource, with both recorded under the same name: the profile shows each block with the stack of
// its user, and the idle memory of the pool.
//
//   using hbmprof::adapters::RecordAs;
//   hbmprof::adapters::TrackingResource segments(cuda_resource, {"GPU:0", "rmm", {}, RecordAs::kSegments});
//   rmm::mr::pool_memory_resource pool(segments, initial_bytes);
//   hbmprof::adapters::TrackingResource blocks(pool, {"GPU:0", "rmm", {}, RecordAs::kBlocks});
//
// Needs CCCL's headers (the CUDA toolkit has them). CCCL 3.0 has <cuda/memory_resource> only if
// LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined.
#ifndef HBMPROF_ADAPTERS_CUDA_MR_H_
#define HBMPROF_ADAPTERS_CUDA_MR_H_

#include <cstddef>
#include <cuda/memory_resource>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "hbmprof/adapters/recorder.h"

namespace hbmprof::adapters {

// A resource that calls a copy of `Upstream` and records the memory, with the requested size. It has the functions of
// the old and of the new concept that Upstream has, and Upstream's properties. To wrap a resource without a copy, pass
// a resource_ref. Exceptions are upstream's. An allocation that throws std::bad_alloc (as RMM does) or a CUDA error
// "out of memory" (as CCCL does) is reported (out_of_memory.h). Thread-safe if Upstream is. One copy of this
// object may free what another copy has allocated: that free is recorded, too.
template <typename Upstream>
class TrackingResource : public ::cuda::forward_property<TrackingResource<Upstream>, Upstream> {
 public:
  // The label `allocator` is "cuda_mr" unless the options have another one.
  explicit TrackingResource(Upstream upstream, const AdapterOptions& options = {})
      : upstream_(std::move(upstream)), recorder_(options, "cuda_mr") {}

  const Upstream& upstream_resource() const noexcept { return upstream_; }

  // --- The new concept: cuda::mr::resource, cuda::mr::synchronous_resource. ---

  template <typename Stream, typename U = Upstream>
  [[gnu::noinline]] auto allocate(Stream stream, size_t bytes, size_t alignment)
      -> decltype(std::declval<U&>().allocate(stream, bytes, alignment)) {
    return Allocate("allocate", Caller::OfThisFunction(), bytes,
                    [&] { return upstream_.allocate(stream, bytes, alignment); });
  }
  template <typename Stream, typename U = Upstream>
  auto deallocate(Stream stream, void* memory, size_t bytes,
                  size_t alignment) noexcept(noexcept(std::declval<U&>().deallocate(stream, memory, bytes, alignment)))
      -> decltype(std::declval<U&>().deallocate(stream, memory, bytes, alignment)) {
    FreeInProgress free(recorder_, memory);
    upstream_.deallocate(stream, memory, bytes, alignment);
    free.Done();
  }
  template <typename U = Upstream>
  [[gnu::noinline]] auto allocate_sync(size_t bytes, size_t alignment)
      -> decltype(std::declval<U&>().allocate_sync(bytes, alignment)) {
    return Allocate("allocate_sync", Caller::OfThisFunction(), bytes,
                    [&] { return upstream_.allocate_sync(bytes, alignment); });
  }
  template <typename U = Upstream>
  auto deallocate_sync(void* memory, size_t bytes,
                       size_t alignment) noexcept(noexcept(std::declval<U&>().deallocate_sync(memory, bytes,
                                                                                              alignment)))
      -> decltype(std::declval<U&>().deallocate_sync(memory, bytes, alignment)) {
    FreeInProgress free(recorder_, memory);
    upstream_.deallocate_sync(memory, bytes, alignment);
    free.Done();
  }

  // --- The old concept: cuda::mr::async_resource, cuda::mr::resource. ---

  template <typename U = Upstream>
  [[gnu::noinline]] auto allocate(size_t bytes, size_t alignment)
      -> decltype(std::declval<U&>().allocate(bytes, alignment)) {
    return Allocate("allocate", Caller::OfThisFunction(), bytes, [&] { return upstream_.allocate(bytes, alignment); });
  }
  template <typename U = Upstream>
  auto deallocate(void* memory, size_t bytes,
                  size_t alignment) noexcept(noexcept(std::declval<U&>().deallocate(memory, bytes, alignment)))
      -> decltype(std::declval<U&>().deallocate(memory, bytes, alignment)) {
    FreeInProgress free(recorder_, memory);
    upstream_.deallocate(memory, bytes, alignment);
    free.Done();
  }
  template <typename Stream, typename U = Upstream>
  [[gnu::noinline]] auto allocate_async(size_t bytes, size_t alignment, Stream stream)
      -> decltype(std::declval<U&>().allocate_async(bytes, alignment, stream)) {
    return Allocate("allocate_async", Caller::OfThisFunction(), bytes,
                    [&] { return upstream_.allocate_async(bytes, alignment, stream); });
  }
  template <typename Stream, typename U = Upstream>
  auto deallocate_async(void* memory, size_t bytes, size_t alignment,
                        Stream stream) noexcept(noexcept(std::declval<U&>().deallocate_async(memory, bytes, alignment,
                                                                                             stream)))
      -> decltype(std::declval<U&>().deallocate_async(memory, bytes, alignment, stream)) {
    FreeInProgress free(recorder_, memory);
    upstream_.deallocate_async(memory, bytes, alignment, stream);
    free.Done();
  }

  // Returns whether memory that one of them allocated can be freed with the other: true if that holds for their
  // upstreams.
  friend bool operator==(const TrackingResource& a, const TrackingResource& b) { return a.upstream_ == b.upstream_; }
  friend bool operator!=(const TrackingResource& a, const TrackingResource& b) { return !(a == b); }

 private:
  template <typename Call>
  [[gnu::always_inline]] void* Allocate(std::string_view name, const Caller& caller, size_t bytes, const Call& call) {
    const ScopedCaller scope(caller);
    void* memory = nullptr;
    try {
      memory = call();
    } catch (const std::bad_alloc&) {
      recorder_.OutOfMemory(name, bytes);
      throw;
    } catch (const ::cuda::cuda_error& error) {
      if (IsOutOfMemory(error, 0)) recorder_.OutOfMemory(name, bytes);
      throw;
    }
    recorder_.Allocated(caller, memory, bytes);
    return memory;
  }

  // cudaErrorMemoryAllocation is 2. Newer releases have the number of the error, older ones only a text with it.
  template <typename Error>
  static auto IsOutOfMemory(const Error& error, int) -> decltype(error.status(), bool()) {
    return static_cast<int>(error.status()) == 2;
  }
  template <typename Error>
  static bool IsOutOfMemory(const Error& error, long) {
    constexpr std::string_view kOutOfMemory = "cudaError 2:";
    return std::string_view(error.what()).substr(0, kOutOfMemory.size()) == kOutOfMemory;
  }

  Upstream upstream_;
  AdapterRecorder recorder_;
};

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_CUDA_MR_H_
