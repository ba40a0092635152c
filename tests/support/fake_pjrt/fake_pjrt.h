// A PJRT plugin that is a device model in host memory: two devices per client, each with a device and a pinned host
// memory space, sizes padded as on a real device, donation, sharing, transfers, errors, and handles that are reused
// immediately. Tests compare the profiler's numbers with its own counts.
//
// It is a shared library that exports GetPjrtApi (its newest table), so it is loaded like any plugin; a test that links
// it also gets the controls below. All functions may be called from any thread.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_PJRT_FAKE_PJRT_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_PJRT_FAKE_PJRT_H_

#include <cstddef>
#include <cstdint>

#include "src/backends/pjrt/abi.h"
#include "tests/support/fake_pjrt/more_abi.h"

extern "C" {

// The tables: of minor version 56 (too old), 57, 81, 114 (the newest known), and one from the future, with more slots.
// Each is the same table at each call.
const hbmprof::internal::pjrt::Api* fake_pjrt_table(int minor);
inline constexpr int kFakePjrtNewest = 114;
inline constexpr int kFakePjrtFuture = 200;
// The future table's last slot, which counts its calls.
inline constexpr int kFakePjrtFutureSlot = 150;

// Sets the memory of every device, and removes all planned failures. REQUIRES: no client exists.
void fake_pjrt_reset(int64_t device_capacity);
// Until the next reset, requests of more than `bytes` of device memory fail. If `is_reported` is true, the memory
// statistics report `bytes` as the largest free block, as if the free memory were fragmented.
void fake_pjrt_limit_requests(int64_t bytes, bool is_reported);
// Until the next reset, the devices have no memory statistics.
void fake_pjrt_hide_memory_stats();
// The next call of `slot` fails with `code` and changes nothing.
void fake_pjrt_fail_next(int slot, int code);
// The next event has this error: from the beginning if `is_known` is true, else when it is awaited.
void fake_pjrt_fail_next_event(int code, bool is_known);

// Called after each destruction of a buffer, before the call returns and with no lock held; null: no function is
// called.
void fake_pjrt_on_destroyed(void (*hook)());

// Bytes that device `index` holds in its device and in its host memory space, over all clients.
int64_t fake_pjrt_device_bytes(int index);
int64_t fake_pjrt_host_bytes(int index);
// The host memory space beside a device memory space.
hbmprof::internal::pjrt::Memory* fake_pjrt_host_memory(hbmprof::internal::pjrt::Memory* device_memory);
// The highest fake_pjrt_device_bytes since the reset.
int64_t fake_pjrt_peak_bytes(int index);
// Bytes that the fake memory statistics report in addition: memory of the runtime itself.
inline constexpr int64_t kFakePjrtOwnBytes = 1000;
// Calls of a slot since the reset; errors, descriptors and buffer handles that exist.
int64_t fake_pjrt_calls(int slot);
int64_t fake_pjrt_live_errors();
int64_t fake_pjrt_live_descriptors();
int64_t fake_pjrt_live_buffers();

// Sizes on the device are multiples of this.
inline constexpr int64_t kFakePjrtPadding = 256;
}

// Programs are text, format "fake", one word and its values a line:
//   name NAME | output TYPE DIM... | donate ARGUMENT | code BYTES | temp BYTES | peak BYTES
// TYPE is a number of PJRT_Buffer_Type. compile_options are the number of devices as text, at most 2; none is 1.

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_PJRT_FAKE_PJRT_H_
