// TrackingOrtAllocator: records the memory of an allocator of ONNX Runtime (OrtAllocator).
//
//   hbmprof::adapters::TrackingOrtAllocator tracker(*upstream, {"GPU:0"});
//   Ort::ThrowOnError(api.RegisterAllocator(env, &tracker));
//   session_options.AddConfigEntry("session.use_env_allocators", "1");
//
// Sessions of this environment then allocate from the tracker. It must live until the environment is released or
// UnregisterAllocator was called, and until all memory that it has allocated is freed.
//
// Needs <onnxruntime_c_api.h> of ONNX Runtime 1.11 or later.
#ifndef HBMPROF_ADAPTERS_ONNXRUNTIME_H_
#define HBMPROF_ADAPTERS_ONNXRUNTIME_H_

#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hbmprof/adapters/recorder.h"

namespace hbmprof::adapters {

// An OrtAllocator that calls `upstream` and records the memory, with the requested size. It has the optional functions
// that both upstream and the header have, and upstream's OrtMemoryInfo. If an allocation of more than 0 bytes returns
// null, this is reported (out_of_memory.h). Thread-safe if upstream is.
//
// Pass RecordAs::kBlocks if upstream is an arena whose segments are recorded, for example because the arena takes them
// from hbmprof::cuda::Malloc or because the program runs under `hbmprof run`.
class TrackingOrtAllocator : public OrtAllocator {
 public:
  // `upstream` must live longer than this object. The label `allocator` is "onnxruntime" unless the options have
  // another one.
  explicit TrackingOrtAllocator(OrtAllocator& upstream, const AdapterOptions& options = {})
      : OrtAllocator(), upstream_(upstream), recorder_(options, "onnxruntime") {
    version = std::min<uint32_t>(upstream.version, ORT_API_VERSION);
    Alloc = &AllocFunction;
    Free = &FreeFunction;
    Info = &InfoFunction;
#if ORT_API_VERSION >= 18
    if (version >= 18 && upstream.Reserve != nullptr) Reserve = &ReserveFunction;
#endif
#if ORT_API_VERSION >= 23
    if (version >= 23 && upstream.GetStats != nullptr) GetStats = &GetStatsFunction;
    if (version >= 23 && upstream.AllocOnStream != nullptr) AllocOnStream = &AllocOnStreamFunction;
#endif
#if ORT_API_VERSION >= 25
    if (version >= 25 && upstream.Shrink != nullptr) Shrink = &ShrinkFunction;
#endif
  }
  TrackingOrtAllocator(const TrackingOrtAllocator&) = delete;
  TrackingOrtAllocator& operator=(const TrackingOrtAllocator&) = delete;

 private:
  static const TrackingOrtAllocator& Of(const OrtAllocator* self) {
    return *static_cast<const TrackingOrtAllocator*>(self);
  }

  [[gnu::noinline]] static void* AllocFunction(OrtAllocator* self, size_t bytes) {
    OrtAllocator& upstream = Of(self).upstream_;
    return Of(self).recorder_.Allocate(Caller::OfThisFunction(), "OrtAllocator::Alloc", bytes,
                                       [&] { return upstream.Alloc(&upstream, bytes); });
  }
  static void FreeFunction(OrtAllocator* self, void* memory) {
    OrtAllocator& upstream = Of(self).upstream_;
    FreeInProgress free(Of(self).recorder_, memory);
    upstream.Free(&upstream, memory);
    free.Done();
  }
  static const OrtMemoryInfo* InfoFunction(const OrtAllocator* self) {
    const OrtAllocator& upstream = Of(self).upstream_;
    return upstream.Info(&upstream);
  }
#if ORT_API_VERSION >= 18
  [[gnu::noinline]] static void* ReserveFunction(OrtAllocator* self, size_t bytes) {
    OrtAllocator& upstream = Of(self).upstream_;
    return Of(self).recorder_.Allocate(Caller::OfThisFunction(), "OrtAllocator::Reserve", bytes,
                                       [&] { return upstream.Reserve(&upstream, bytes); });
  }
#endif
#if ORT_API_VERSION >= 23
  static OrtStatus* GetStatsFunction(const OrtAllocator* self, OrtKeyValuePairs** stats) noexcept {
    const OrtAllocator& upstream = Of(self).upstream_;
    return upstream.GetStats(&upstream, stats);
  }
  [[gnu::noinline]] static void* AllocOnStreamFunction(OrtAllocator* self, size_t bytes, OrtSyncStream* stream) {
    OrtAllocator& upstream = Of(self).upstream_;
    return Of(self).recorder_.Allocate(Caller::OfThisFunction(), "OrtAllocator::AllocOnStream", bytes,
                                       [&] { return upstream.AllocOnStream(&upstream, bytes, stream); });
  }
#endif
#if ORT_API_VERSION >= 25
  static OrtStatus* ShrinkFunction(OrtAllocator* self) noexcept {
    OrtAllocator& upstream = Of(self).upstream_;
    return upstream.Shrink(&upstream);
  }
#endif

  OrtAllocator& upstream_;
  AdapterRecorder recorder_;
};

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_ONNXRUNTIME_H_
