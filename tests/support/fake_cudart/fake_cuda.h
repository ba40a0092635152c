// A CUDA device model for tests without a GPU, in two shared libraries that a program uses instead of the real ones:
// libcuda.so.1 holds the devices (fake_cuda.cc), the driver's memory calls (fake_driver.cc) and its work: streams,
// copies and code (fake_work.cc); libcudart.so.<major> the runtime's memory calls on top of the model. Memory is host
// memory. Copies and fills are real, kernels do nothing. This header: the controls, and the model as the calls use it.
// Not in this file: any imitation of how the real runtime checks the driver.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_CUDART_FAKE_CUDA_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_CUDART_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

extern "C" {

// --- Controls, for tests. All functions are thread-safe. ---

// Removes all state and starts with `devices` devices of `capacity` bytes each. Before the first call they come
// from FAKE_CUDA_DEVICES and FAKE_CUDA_CAPACITY, by default 2 devices of 1 GiB.
void fake_cuda_reset(int devices, size_t capacity);
// After `successes` more calls of `function`, one call of it returns `error` and does nothing else. The environment
// variable FAKE_CUDA_FAIL=function:error:successes has the same effect.
void fake_cuda_fail(const char* function, int error, int successes);
// Calls of the function `function` since the start or the last reset, failed ones included.
int64_t fake_cuda_calls(const char* function);
// Bytes of a device in use: allocations rounded up to 512, and fake_cuda_context_bytes() for an active context.
size_t fake_cuda_bytes_in_use(int device);
size_t fake_cuda_context_bytes(void);
int fake_cuda_context_active(int device);
// Everything that has not been freed: buffers, arrays, openings, registrations, pools and streams.
int64_t fake_cuda_live_objects(void);

// Takes or gives back bytes of a device without an allocation call. fake_cuda_take returns 0, or 2 (out of memory).
int fake_cuda_take(int device, size_t bytes);
void fake_cuda_give(int device, size_t bytes);
// Takes bytes of a device for another process, which the fake NVML reports. Returns 0, or 2 (out of memory).
int fake_cuda_take_elsewhere(int device, size_t bytes);
// Bytes of the device that fake_cuda_take_elsewhere has taken; part of fake_cuda_bytes_in_use.
size_t fake_cuda_bytes_elsewhere(int device);

// --- The model, for the calls. ---

// A handle that no pool has.
#define FAKE_CUDA_NO_POOL (~(uintptr_t)0)

enum fake_cuda_kind {
  FAKE_CUDA_DEVICE,
  FAKE_CUDA_STREAM_ORDERED,
  FAKE_CUDA_MANAGED,
  FAKE_CUDA_HOST,
  FAKE_CUDA_REGISTERED,
  FAKE_CUDA_IMPORTED,  // opened from elsewhere: takes nothing of the device, freed as stream-ordered memory is
  FAKE_CUDA_OBJECT,    // a handle: array, pool, stream, external memory
};

struct fake_cuda_block {
  uintptr_t base;
  size_t bytes;
  int device;
  enum fake_cuda_kind kind;
  uintptr_t context;  // the current one at the allocation
};

// 0, or 3 (not initialized) before cuInit has succeeded. A call of a runtime counts as cuInit.
int fake_cuda_ready(void);
int fake_cuda_init_was_called(void);
// Counts a call; returns the injected error, or fake_cuda_ready().
int fake_cuda_enter(const char* function);
// Returns `result`. With FAKE_CUDA_LOG=FILE, appends a line to this file if it is an error, as the drivers since 580 do
// with CUDA_LOG_FILE. The functions that hbmprof asks call it.
int fake_cuda_result(const char* function, int result);
int fake_cuda_device_count(void);
size_t fake_cuda_capacity(int device);
// Makes the device's primary context active and current on this thread.
void fake_cuda_use_device(int device);
// The device of this thread's current context, -1 if it has none.
int fake_cuda_current_device(void);
// Returns 0, or 2 (out of memory). The memory is aligned to 512 bytes. Zero bytes give null.
int fake_cuda_allocate(int device, size_t bytes, enum fake_cuda_kind kind, void** ptr);
// Adds memory of the caller's own. Returns 0 if it is there already.
int fake_cuda_adopt(int device, void* ptr, size_t bytes, enum fake_cuda_kind kind);
// Removes the block at exactly `ptr` if its kind is in `kinds` (a bit mask). Returns whether there was one.
int fake_cuda_release(void* ptr, unsigned kinds);
// Finds the block that contains `ptr`. Returns whether there is one.
int fake_cuda_find(const void* ptr, struct fake_cuda_block* block);
// Whether the stream captures into a graph; then copies and fills do nothing.
int fake_cuda_is_capturing(void* stream);
// Whether the stream waits for the legacy stream, and the legacy stream for it; and whether such a stream captures.
int fake_cuda_is_blocking(void* stream);
int fake_cuda_is_legacy_stream_blocked(void);
// Whether devices have pools of memory: 0 with FAKE_CUDA_POOLS=0.
int fake_cuda_has_pools(void);
// Frees the memory that cudaDeviceReset frees.
void fake_cuda_reset_device(int device);
}

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_CUDART_FAKE_CUDA_H_
