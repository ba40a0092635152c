// The part of ONNX Runtime's C interface that the adapter, its test and its example use, by its binary interface:
// OrtAllocator with all functions up to version 25, and the functions of OrtApi with their positions. PyPI's package of
// ONNX Runtime has no header. A program uses the header of the release that it is built with.
#ifndef HBMPROF_TESTS_ADAPTERS_DECLARATIONS_ONNXRUNTIME_C_API_H_
#define HBMPROF_TESTS_ADAPTERS_DECLARATIONS_ONNXRUNTIME_C_API_H_

#include <stddef.h>
#include <stdint.h>

// A test of older headers sets it.
#ifndef ORT_API_VERSION
#define ORT_API_VERSION 25
#endif

struct OrtEnv;
struct OrtStatus;
struct OrtMemoryInfo;
struct OrtSession;
struct OrtSessionOptions;
struct OrtValue;
struct OrtKeyValuePairs;
struct OrtSyncStream;

struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t bytes);
  void (*Free)(OrtAllocator* self, void* memory);
  const OrtMemoryInfo* (*Info)(const OrtAllocator* self);
#if ORT_API_VERSION >= 18
  void* (*Reserve)(OrtAllocator* self, size_t bytes);
#endif
#if ORT_API_VERSION >= 23
  OrtStatus* (*GetStats)(const OrtAllocator* self, OrtKeyValuePairs** stats) noexcept;
  void* (*AllocOnStream)(OrtAllocator* self, size_t bytes, OrtSyncStream* stream);
#endif
#if ORT_API_VERSION >= 25
  OrtStatus* (*Shrink)(OrtAllocator* self) noexcept;
#endif
};

// A function of OrtApi is a pointer in its array of functions.
struct OrtApi {
  void* functions[178];

  template <typename Function>
  Function* At(int position) const {
    return reinterpret_cast<Function*>(functions[position]);
  }
  const char* GetErrorMessage(const OrtStatus* status) const { return At<const char*(const OrtStatus*)>(2)(status); }
  OrtStatus* CreateEnv(int severity, const char* id, OrtEnv** env) const {
    return At<OrtStatus*(int, const char*, OrtEnv**)>(3)(severity, id, env);
  }
  OrtStatus* CreateSessionFromArray(const OrtEnv* env, const void* model, size_t bytes,
                                    const OrtSessionOptions* options, OrtSession** session) const {
    return At<OrtStatus*(const OrtEnv*, const void*, size_t, const OrtSessionOptions*, OrtSession**)>(8)(
        env, model, bytes, options, session);
  }
  OrtStatus* Run(OrtSession* session, const char* const* inputs, const OrtValue* const* values, size_t input_count,
                 const char* const* outputs, size_t output_count, OrtValue** results) const {
    return At<OrtStatus*(OrtSession*, const void*, const char* const*, const OrtValue* const*, size_t,
                         const char* const*, size_t, OrtValue**)>(9)(session, nullptr, inputs, values, input_count,
                                                                     outputs, output_count, results);
  }
  OrtStatus* CreateSessionOptions(OrtSessionOptions** options) const {
    return At<OrtStatus*(OrtSessionOptions**)>(10)(options);
  }
  OrtStatus* SetIntraOpNumThreads(OrtSessionOptions* options, int threads) const {
    return At<OrtStatus*(OrtSessionOptions*, int)>(24)(options, threads);
  }
  OrtStatus* CreateTensorWithDataAsOrtValue(const OrtMemoryInfo* info, void* data, size_t bytes, const int64_t* shape,
                                            size_t dimensions, int type, OrtValue** value) const {
    return At<OrtStatus*(const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**)>(49)(
        info, data, bytes, shape, dimensions, type, value);
  }
  OrtStatus* GetTensorMutableData(OrtValue* value, void** data) const {
    return At<OrtStatus*(OrtValue*, void**)>(51)(value, data);
  }
  OrtStatus* CreateCpuMemoryInfo(int allocator_type, int memory_type, OrtMemoryInfo** info) const {
    return At<OrtStatus*(int, int, OrtMemoryInfo**)>(69)(allocator_type, memory_type, info);
  }
  OrtStatus* GetAllocatorWithDefaultOptions(OrtAllocator** allocator) const {
    return At<OrtStatus*(OrtAllocator**)>(78)(allocator);
  }
  void ReleaseEnv(OrtEnv* env) const { At<void(OrtEnv*)>(92)(env); }
  void ReleaseStatus(OrtStatus* status) const { At<void(OrtStatus*)>(93)(status); }
  void ReleaseMemoryInfo(OrtMemoryInfo* info) const { At<void(OrtMemoryInfo*)>(94)(info); }
  void ReleaseSession(OrtSession* session) const { At<void(OrtSession*)>(95)(session); }
  void ReleaseValue(OrtValue* value) const { At<void(OrtValue*)>(96)(value); }
  void ReleaseSessionOptions(OrtSessionOptions* options) const { At<void(OrtSessionOptions*)>(100)(options); }
  OrtStatus* AddSessionConfigEntry(OrtSessionOptions* options, const char* key, const char* value) const {
    return At<OrtStatus*(OrtSessionOptions*, const char*, const char*)>(130)(options, key, value);
  }
  OrtStatus* RegisterAllocator(OrtEnv* env, OrtAllocator* allocator) const {
    return At<OrtStatus*(OrtEnv*, OrtAllocator*)>(176)(env, allocator);
  }
  OrtStatus* UnregisterAllocator(OrtEnv* env, const OrtMemoryInfo* info) const {
    return At<OrtStatus*(OrtEnv*, const OrtMemoryInfo*)>(177)(env, info);
  }
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
extern "C" const OrtApiBase* OrtGetApiBase();

#endif  // HBMPROF_TESTS_ADAPTERS_DECLARATIONS_ONNXRUNTIME_C_API_H_
