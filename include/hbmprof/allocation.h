// What an allocation is: the ids that name it and the attributes that label it.
//
// Lives here: BufferId, DeviceId, AllocatorId, MemoryKind, MemorySpace, Attributes.
// Not here: recording (profiler.h), what was recorded (snapshot.h).
#ifndef HBMPROF_ALLOCATION_H_
#define HBMPROF_ALLOCATION_H_

#include <cstdint>
#include <string_view>

namespace hbmprof {

// A device of one Profiler, as returned by Profiler::Device(). A device is its name: what is recorded under the same
// name, in whatever way, is one device. These names are used:
//
//   name           is                                                               used by
//   GPU:N          the CUDA device with ordinal N in this process                   hbmprof::cuda, `hbmprof run`,
//                                                                                   numbers 0 to 62 of c_api.h
//   the plugin's   a PJRT device, by its debug string (TFRT_CPU_0, TPU_0(...))      hbmprof::pjrt
//   any other      what the program says it is                                      Device(), hbmprof_device()
//   unknown        memory of which CUDA or the plugin does not tell the device; a   hbmprof::cuda, `hbmprof run`,
//                  number of c_api.h that is no device's                            hbmprof::pjrt, c_api.h
//
// N is the number that cudaSetDevice and cuDeviceGet take. It counts the devices that this process sees: the entries of
// CUDA_VISIBLE_DEVICES, whether those are indices, UUIDs or MIG instances, in their order, and without that variable
// all GPUs in the order of CUDA_DEVICE_ORDER. A MIG instance is a device of its own. So GPU:0 of two processes may be
// two GPUs, and N need not be nvidia-smi's index.
//
// A PJRT device of a GPU keeps the plugin's name on purpose. Its buffers lie in memory that the plugin took with CUDA's
// calls: where those are recorded too, the same bytes are counted as GPU:N, and one sum of both would count them twice.
// Its limit and its `unaccounted` are of the plugin's pool, those of GPU:N of the whole GPU. And a plugin's ids are not
// CUDA ordinals: they count the devices of all hosts of a run.
//
// Id 0 always exists and is "GPU:0": the device of what names none.
enum class DeviceId : uint16_t {};
inline constexpr DeviceId kDefaultDevice{0};
// The number of devices that a Profiler has names for.
inline constexpr int kMaxDevices = 64;

// An allocator of one Profiler, as returned by Profiler::Allocator(). Id 0 is "no name": its samples have no
// `allocator` label.
enum class AllocatorId : uint16_t {};

// What sort of memory a buffer is. Becomes the label `kind`; MemoryKindName() gives its value.
enum class MemoryKind : uint8_t {
  kDevice,      // linear device memory (cudaMalloc, TPU HBM)
  kManaged,     // migrates between host and device (cudaMallocManaged)
  kPinnedHost,  // page-locked host memory (cudaMallocHost)
  kPool,        // a pool's segment: the bytes of it that no live block covers
  kVmm,         // physical memory made by cuMemCreate
  kArray,       // texture memory; its size is an estimate
  kGraph,       // allocated by a CUDA graph
  kExecutable,  // program code and constants
  kExternal,    // another process's or API's memory, opened here
  kAlias,       // a view of other memory; always counted as zero bytes
};
inline constexpr int kMemoryKindCount = 10;

// The value of the `kind` label: "device", "managed", "pinned_host", "pool", "vmm", "array", "graph", "executable",
// "external", "alias".
std::string_view MemoryKindName(MemoryKind kind);

// Which total a buffer counts towards. A device's own total never includes managed or pinned host memory; each space
// of each device has its own bytes in use and its own peak.
enum class MemorySpace : uint8_t { kDevice, kManaged, kPinnedHost };
inline constexpr int kMemorySpaceCount = 3;

// "device", "managed", "pinned_host".
std::string_view MemorySpaceName(MemorySpace space);

constexpr MemorySpace SpaceOf(MemoryKind kind) {
  return kind == MemoryKind::kManaged      ? MemorySpace::kManaged
         : kind == MemoryKind::kPinnedHost ? MemorySpace::kPinnedHost
                                           : MemorySpace::kDevice;
}

// Names one live buffer: a base address, or a handle that is no address. Handles live in numbered name spaces of
// their own (1 to 63, chosen by the backend), so that a handle never collides with an address. Addresses of several
// devices share one name space, as they do under CUDA's unified addressing; a backend whose devices reuse each other's
// addresses gives each device a handle name space.
class BufferId {
 public:
  constexpr BufferId() = default;
  BufferId(const void* address) : value_(reinterpret_cast<uintptr_t>(address)) {}  // NOLINT: implicit on purpose
  constexpr explicit BufferId(uint64_t address) : value_(address) {}

  // `handle` must be below 2^57; higher bits are ignored.
  static constexpr BufferId Handle(uint8_t name_space, uint64_t handle) {
    return BufferId((uint64_t{name_space} << 57) ^ (handle & ((uint64_t{1} << 57) - 1)));
  }

  constexpr uint64_t value() const { return value_; }
  constexpr bool is_null() const { return value_ == 0; }
  constexpr bool is_handle() const { return value_ >> 57 != 0; }

 private:
  uint64_t value_ = 0;
};

// The labels of an allocation beside its call stack and its tags (tag.h).
struct Attributes {
  DeviceId device = kDefaultDevice;
  MemoryKind kind = MemoryKind::kDevice;
  AllocatorId allocator{};
};

}  // namespace hbmprof

#endif  // HBMPROF_ALLOCATION_H_
