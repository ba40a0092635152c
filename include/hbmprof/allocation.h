// The description of an allocation: the id of its buffer, and attributes that become labels in a profile.
#ifndef HBMPROF_ALLOCATION_H_
#define HBMPROF_ALLOCATION_H_

#include <cstdint>
#include <string_view>

namespace hbmprof {

// A device of one Profiler. Profiler::Device(name) returns it. A device is identified by its name: all records with one
// device name belong to one device. These names are used:
//
//   name               device                                                used by
//   GPU:N              the CUDA device with ordinal N in this process        hbmprof::cuda, `hbmprof run`,
//                                                                            numbers 0 to 62 of c_api.h
//   the plugin's name  a PJRT device, by its debug string: TFRT_CPU_0        hbmprof::pjrt
//   OpenCL:P:D         device D of OpenCL's platform P                       `hbmprof run`
//   any other          chosen by the program                                 Device(), hbmprof_device()
//   unknown            memory whose device CUDA or the plugin does not       hbmprof::cuda, `hbmprof run`,
//                      report; invalid device numbers of c_api.h             hbmprof::pjrt, c_api.h
//
// The ordinal N is the number that cudaSetDevice and cuDeviceGet take. It counts the devices that this process sees:
// the entries of CUDA_VISIBLE_DEVICES in their order (indices, UUIDs or MIG instances), or without that variable all
// GPUs in the order of CUDA_DEVICE_ORDER. A MIG instance is a device of its own. So GPU:0 of two processes may be two
// different GPUs, and N may differ from the index that nvidia-smi shows.
//
// A GPU that is used through PJRT keeps the plugin's name, for three reasons. The plugin allocates its memory with CUDA
// calls. If these calls are recorded too, the same bytes are also recorded as GPU:N, and one common device would count
// them twice. The limit and `unaccounted` of the plugin's device describe the plugin's pool; those of GPU:N describe
// the whole GPU. A plugin's device ids count the devices of all hosts of a run, so they are not CUDA ordinals.
//
// Id 0 always exists. It is "GPU:0" and the default of Attributes::device.
enum class DeviceId : uint16_t {};
inline constexpr DeviceId kDefaultDevice{0};
// The largest number of devices of one Profiler, including the device "other".
inline constexpr int kMaxDevices = 64;

// An allocator of one Profiler. Profiler::Allocator(name) returns it. Id 0 has no name: its samples have no label
// `allocator`.
enum class AllocatorId : uint16_t {};

// The kind of memory of a buffer. A profile shows it as the label `kind`.
enum class MemoryKind : uint8_t {
  kDevice,      // linear device memory (cudaMalloc, TPU HBM)
  kManaged,     // migrates between host and device (cudaMallocManaged)
  kPinnedHost,  // page-locked host memory (cudaMallocHost)
  kPool,        // a segment of a pool, and the idle memory of a pool; recorded by Profiler::RecordSegment only
  kVmm,         // physical memory made by cuMemCreate
  kArray,       // texture memory; its size is an estimate
  kGraph,       // allocated by a CUDA graph
  kExecutable,  // program code and constants
  kExternal,    // memory of another process or API, opened in this process
  kAlias,       // a view of other memory; always counted as 0 bytes
};
inline constexpr int kMemoryKindCount = 10;

// Returns the value of the label `kind`: "device", "managed", "pinned_host", "pool", "vmm", "array", "graph",
// "executable", "external" or "alias"; "unknown" for any other number.
std::string_view MemoryKindName(MemoryKind kind);

// A memory space of a device. Each buffer is counted in one space: SpaceOf(kind). Each space has its own bytes in use
// and its own peak. The space kDevice includes neither managed nor pinned host memory.
enum class MemorySpace : uint8_t { kDevice, kManaged, kPinnedHost };
inline constexpr int kMemorySpaceCount = 3;

// Returns "device", "managed" or "pinned_host"; "unknown" for any other number.
std::string_view MemorySpaceName(MemorySpace space);

constexpr MemorySpace SpaceOf(MemoryKind kind) {
  return kind == MemoryKind::kManaged      ? MemorySpace::kManaged
         : kind == MemoryKind::kPinnedHost ? MemorySpace::kPinnedHost
                                           : MemorySpace::kDevice;
}

namespace internal {

// The name spaces of the handles that hbmprof itself records, at most 31.
enum class NameSpace : uint8_t {
  kCudaArray = 1,
  kCudaMipmappedArray = 2,
  kCudaExternalMemory = 3,
  kCudaPhysical = 4,  // cuMemCreate; the number is chosen by hbmprof
  kCudaModule = 5,
  kCudaLibrary = 6,
  kCudaFromBefore = 7,  // the memory of a device from before `hbmprof attach`
  kPjrtBuffer = 8,
  kPjrtUnknown = 9,
  kTorchMapped = 10,  // mapped memory of an expandable segment
  kOpenclMem = 11,
  kAscendRegistered = 12,
};

}  // namespace internal

// Identifies one live buffer: by its address, or by a handle that is not an address. A handle belongs to a name space.
// The name spaces 32 to 63 are the program's, which chooses one; 1 to 31 are those of hbmprof itself. The name space is
// part of the id, so a handle is never equal to an address. The addresses of all devices are one name space, as under
// CUDA's unified addressing. If the addresses of two devices can be equal, give each device a name space of its own,
// with the address as the handle.
class BufferId {
 public:
  // The null id. It is never recorded.
  constexpr BufferId() = default;
  // The buffer at `address`. Implicit, so that a pointer can be passed to the functions of Profiler.
  BufferId(const void* address) : value_(reinterpret_cast<uintptr_t>(address)) {}  // NOLINT
  // BufferId(0) is ambiguous, because 0 is also a null pointer. Write BufferId(uint64_t{0}).
  constexpr explicit BufferId(uint64_t address) : value_(address) {}

  static constexpr uint8_t kFirstNameSpace = 32;
  static constexpr uint8_t kLastNameSpace = 63;
  // The buffer that `handle` identifies in `name_space`. Only the lowest 57 bits of the handle are used. If the name
  // space is not 32 to 63, the id is no buffer's: an allocation with it is not recorded, and dropped_records counts it.
  static constexpr BufferId Handle(uint8_t name_space, uint64_t handle) {
    const bool is_valid = name_space >= kFirstNameSpace && name_space <= kLastNameSpace;
    return is_valid ? Handle(internal::NameSpace{name_space}, handle) : BufferId(~uint64_t{0});
  }
  static constexpr BufferId Handle(internal::NameSpace name_space, uint64_t handle) {
    return BufferId((static_cast<uint64_t>(name_space) << 57) ^ (handle & ((uint64_t{1} << 57) - 1)));
  }

  constexpr uint64_t value() const { return value_; }
  constexpr bool is_null() const { return value_ == 0; }
  constexpr bool is_handle() const { return value_ >> 57 != 0; }

 private:
  uint64_t value_ = 0;
};

// The labels of an allocation, besides its tags (tag.h). A device or allocator number that is too large is recorded as
// the largest valid number, and a kind that does not exist as kDevice.
struct Attributes {
  DeviceId device = kDefaultDevice;
  MemoryKind kind = MemoryKind::kDevice;
  AllocatorId allocator{};
};

// A pool: an allocator that reserves segments of a device's memory and hands out blocks of them. All events of its
// segments and blocks name the same pool. It exists from its first event on. A profiler has at most 127 pools.
struct Pool {
  DeviceId device = kDefaultDevice;
  AllocatorId allocator{};  // its name
};

namespace internal {

// Returns the attributes as one number. The compiler computes it if they are constants.
constexpr uint64_t PackAttributes(const Attributes& attributes) {
  return static_cast<uint64_t>(attributes.device) | static_cast<uint64_t>(attributes.kind) << 16 |
         static_cast<uint64_t>(attributes.allocator) << 24;
}

}  // namespace internal
}  // namespace hbmprof

#endif  // HBMPROF_ALLOCATION_H_
