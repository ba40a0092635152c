// Records the memory of a PJRT plugin: TPUs and every other device that XLA programs use through PJRT.
//
//   const PJRT_Api* api = hbmprof::pjrt::Wrap(GetPjrtApi());
//   ...from here on the program uses `api`...
//
// A program that loads a plugin by its path (JAX, pytorch/xla) needs no change: let it load libhbmprof_pjrt.so, which
// wraps the real plugin, and name the real plugin's path in the environment variable HBMPROF_PJRT_PLUGIN
// (docs/pjrt.md).
//
// The following is recorded in Profiler::Default(), with the call stack at which the program calls a function of the
// table, and with the labels `device` (the plugin's name of the device), `memory` (its name of the memory space) and
// `shape` (such as f32[128,64]):
//
//   what                                                         recorded as
//   buffers: from host memory, uninitialized, copied,            their size on the device
//     of an asynchronous transfer
//   outputs of an execution (same stack; labels executable       their size on the device
//     and call_location, see below)
//   arguments that an execution took over (donation)             freed when the plugin reports them as deleted
//   buffers that were donated under a control dependency         continued under their new handle
//   views, bitcasts, aliases                                     0 bytes, kind alias. The memory that a bitcast or a
//                                                                fulfilled alias shares is live until no buffer uses it
//   executables: compiled, loaded, deserialized (labels          the size of the code, once for each addressable
//     executable, temp_bytes, peak_bytes)                        device, kind executable
//   host memory mapped for DMA, buffers in a host memory space   kind pinned_host
//
// The record of a buffer ends when the program deletes the buffer, or later, when the last external reference to it
// ends. Sizes and deletions are those that the plugin reports: work that is still in progress may hold the memory a
// little longer. Memory that the program has not freed when it destroys the client is a leak: it stays in the profile
// and is listed on stderr. If the plugin has memory statistics, they become the device's own numbers
// (DeviceStats::bytes_limit, driver_bytes_in_use, unaccounted).
//
// The label call_location is the first line of PJRT_ExecuteOptions::call_location.
//
// A wrapped call that fails for lack of memory (RESOURCE_EXHAUSTED) is reported (out_of_memory.h).
//
// Not recorded: memory of the table's extensions (raw buffers, transfers between hosts), and memory that the runtime
// takes for itself. This header needs no header of PJRT.
#ifndef HBMPROF_PJRT_H_
#define HBMPROF_PJRT_H_

// As in pjrt_c_api.h.
struct PJRT_Api;

namespace hbmprof::pjrt {

// Returns a table like `api` whose calls are recorded. It has the same size, version and extensions. Each call passes
// its arguments on unchanged, makes the plugin's call once and returns its result, errors included. The table is never
// freed; `api` must live as long as the process. If Wrap is called again with the same `api`, or with a table that Wrap
// returned, it returns the same table. Any thread may call it; it throws nothing.
//
// Returns `api` itself, and prints the reason on stderr, if it cannot be wrapped. So if `Wrap(api) == api` for the
// table of a plugin, its calls are not recorded. The reasons are: a null or incomplete table, a table of more than
// 65,536 bytes, a major version other than 0, a minor version less than 57 (whose functions are in another order), a
// ninth plugin in one process, or no host memory.
const PJRT_Api* Wrap(const PJRT_Api* api);

}  // namespace hbmprof::pjrt

#endif  // HBMPROF_PJRT_H_
