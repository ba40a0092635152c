// TPU and every other PJRT device: a plugin's function table, wrapped so that each device buffer and each loaded
// executable is recorded.
//
//   const PJRT_Api* api = hbmprof::pjrt::Wrap(GetPjrtApi());
//
// and from then on the program uses `api`. For programs that load a plugin by its path (JAX, pytorch/xla), there is
// libhbmprof_pjrt.so, a plugin that wraps another one.
//
// Recorded in Profiler::Default(), each with the stack of whoever called the table and with the labels `device` (the
// plugin's own name for it), `memory` (its name for the memory space) and `shape` (such as f32[128,64]):
//
//   buffers from host memory, uninitialized, copied, of an asynchronous transfer   their size on the device
//   outputs of an execution (one stack; labels executable, call_location)          their size on the device
//   arguments that an execution took over (donation)                              end when the plugin calls them
//   deleted buffers donated under a control dependency                                     go on under their new handle
//   views, bitcasts, aliases                                                      0, kind alias; a bitcast's or a
//                                                                                 fulfilled alias's memory lives on
//                                                                                 until the last that shares it is gone
//   executables: compiled, loaded, deserialized (labels executable, temp_bytes,   size of the code, once for each
//   peak_bytes)                                                                   addressable device, kind executable
//   host memory mapped for DMA, buffers in a host memory space                    kind pinned_host
//
// A deleted buffer ends at the deletion, or with the last external reference. Sizes and deletions are the plugin's
// logical ones: work in flight may hold the memory a little longer. What a destroyed client leaves behind stays in the
// profile, since it is a leak, and is listed on stderr. The plugin's memory statistics become the device's own numbers
// (DeviceStats::bytes_limit, driver_bytes_in_use, unaccounted) where it has any.
//
// When a wrapped call fails for lack of memory (RESOURCE_EXHAUSTED), a profile is written, at most once a minute:
// Options::oom_output says where.
//
// Not seen: memory that comes from extensions of the table (raw buffers, cross-host transfers), and what the runtime
// takes for itself. Needs no header of PJRT's.
#ifndef HBMPROF_PJRT_H_
#define HBMPROF_PJRT_H_

// As in pjrt_c_api.h.
struct PJRT_Api;

namespace hbmprof::pjrt {

// A table like `api` whose calls are recorded: same size, version and extensions; every call passes its arguments on
// unchanged, makes the plugin's own call once and returns what that returned, errors included. It lives for ever, and
// so must `api`. The same table for the same `api`, and for one that is wrapped already itself. Thread-safe, throws
// nothing.
//
// Returns `api` as it is, and says why on stderr: a null or incomplete table, a major version other than 0, a minor
// version before 57 (whose slots are in another order), or a ninth plugin in one process.
const PJRT_Api* Wrap(const PJRT_Api* api);

}  // namespace hbmprof::pjrt

#endif  // HBMPROF_PJRT_H_
