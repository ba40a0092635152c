// The part of the PJRT C API's ABI that hbmprof uses: slots of the function table and argument structs. They are
// declared from the published layout (major version 0, LP64) and checked at compile time. Needs no vendor header.
//
// Rules of this ABI: a minor version only appends slots and fields, so the declarations here stay valid. The first
// field of a struct is its size in the version of the code that fills it in. A callee accepts a struct that is larger
// than the one it knows.
//
// Not in this file: calls (plugin.h), what they mean for the records (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_PJRT_ABI_H_
#define HBMPROF_SRC_BACKENDS_PJRT_ABI_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal::pjrt {

static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4, "the layouts below are those of LP64");

// Handles are objects of the plugin. hbmprof never accesses their contents.
struct Error;
struct Client;
struct Device;
struct DeviceDescription;
struct Memory;
struct Buffer;
struct Executable;
struct LoadedExecutable;
struct TransferManager;  // PJRT_AsyncHostToDeviceTransferManager
struct Event;
struct FulfillCallback;  // PJRT_FulfillAliasBufferCallback

inline constexpr int kErrorResourceExhausted = 8;
inline constexpr int kErrorNotFound = 5;

// The names of PJRT_Buffer_Type, by value.
inline constexpr const char* kElementTypeNames[] = {
    "invalid",       "pred",       "s8",         "s16",      "s32",     "s64",   "u8",   "u16",    "u32",
    "u64",           "f16",        "f32",        "f64",      "bf16",    "c64",   "c128", "f8e5m2", "f8e4m3fn",
    "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s4",       "u4",      "token", "s2",   "u2",     "f8e4m3",
    "f8e3m4",        "f8e8m0fnu",  "f4e2m1fn",   "f6e2m3fn", "f6e3m2fn"};

// The beginning of the table that GetPjrtApi() returns, up to the first function pointer.
struct Api {
  size_t struct_size;
  void* extension_start;
  struct {
    size_t struct_size;
    void* extension_start;
    int major;
    int minor;
  } version;
};
static_assert(sizeof(Api) == 40 && offsetof(Api, version.major) == 32 && offsetof(Api, version.minor) == 36);

// The slots are in this order since minor version 57.
inline constexpr int kMajorVersion = 0;
inline constexpr int kLeastMinorVersion = 57;

// The number of a function pointer in the table.
enum Slot : int {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kEventIsReady = 6,
  kEventError = 7,
  kEventAwait = 8,
  kClientCreate = 10,
  kClientDestroy = 11,
  kClientAddressableDevices = 16,
  kClientCompile = 20,
  kBufferFromHostBuffer = 22,
  kDeviceDescriptionDebugString = 27,
  kDeviceGetDescription = 29,
  kDeviceDefaultMemory = 33,
  kDeviceMemoryStats = 34,
  kMemoryKind = 36,
  kMemoryAddressableByDevices = 39,
  kExecutableDestroy = 40,
  kExecutableName = 41,
  kExecutableNumOutputs = 44,
  kExecutableSizeOfGeneratedCode = 45,
  kLoadedExecutableDestroy = 50,
  kLoadedExecutableGetExecutable = 51,
  kLoadedExecutableAddressableDevices = 52,
  kLoadedExecutableDelete = 53,
  kLoadedExecutableExecute = 55,
  kDeserializeAndLoad = 56,
  kBufferDestroy = 58,
  kBufferElementType = 59,
  kBufferDimensions = 60,
  kBufferOnDeviceSize = 64,
  kBufferMemory = 66,
  kBufferDelete = 67,
  kBufferIsDeleted = 68,
  kBufferCopyToDevice = 69,
  kBufferIncreaseReferences = 74,
  kBufferDecreaseReferences = 75,
  kBufferCopyToMemory = 92,
  kCreateView = 93,
  kExecutableMemoryStats = 96,
  kTransferManagerDestroy = 101,
  kCreateBuffersForTransfer = 103,
  kTransferManagerRetrieve = 104,
  kTransferManagerDevice = 105,
  kTransferManagerBufferSize = 107,
  kDmaMap = 110,
  kDmaUnmap = 111,
  kCreateUninitialized = 112,
  kCreateAlias = 115,
  kFulfillAlias = 116,
  kCreateError = 118,
  kDonateWithControlDependency = 125,
  kClientLoad = 129,
  kBufferBitcast = 131,
};

constexpr size_t OffsetOf(int slot) { return sizeof(Api) + sizeof(void*) * static_cast<size_t>(slot); }

// Argument structs. HBMPROF_PJRT_ARGS begins a struct with the two fields that all of them begin with.
#define HBMPROF_PJRT_ARGS(name) \
  struct name {                 \
    size_t struct_size;         \
    void* extension_start;
// Ends it, and checks the offset of its last field.
#define HBMPROF_PJRT_END(name, last, offset) \
  }                                          \
  ;                                          \
  static_assert(offsetof(name, last) == (offset), #name "::" #last)

// clang-format off
HBMPROF_PJRT_ARGS(ErrorDestroyArgs) Error* error; HBMPROF_PJRT_END(ErrorDestroyArgs, error, 16);
HBMPROF_PJRT_ARGS(ErrorMessageArgs)
  const Error* error; const char* message; size_t message_size;
HBMPROF_PJRT_END(ErrorMessageArgs, message_size, 32);
HBMPROF_PJRT_ARGS(ErrorGetCodeArgs) const Error* error; int code; HBMPROF_PJRT_END(ErrorGetCodeArgs, code, 24);

HBMPROF_PJRT_ARGS(EventArgs) Event* event; HBMPROF_PJRT_END(EventArgs, event, 16);
HBMPROF_PJRT_ARGS(EventIsReadyArgs) Event* event; bool is_ready; HBMPROF_PJRT_END(EventIsReadyArgs, is_ready, 24);

HBMPROF_PJRT_ARGS(ClientCreateArgs)
  const void* create_options; size_t num_options;
  void* kv_get_callback; void* kv_get_user_arg; void* kv_put_callback; void* kv_put_user_arg;
  Client* client; void* kv_try_get_callback; void* kv_try_get_user_arg;
HBMPROF_PJRT_END(ClientCreateArgs, kv_try_get_user_arg, 80);
static_assert(offsetof(ClientCreateArgs, client) == 64);
HBMPROF_PJRT_ARGS(ClientDestroyArgs) Client* client; HBMPROF_PJRT_END(ClientDestroyArgs, client, 16);
HBMPROF_PJRT_ARGS(ClientAddressableDevicesArgs)
  Client* client; Device* const* devices; size_t num_devices;
HBMPROF_PJRT_END(ClientAddressableDevicesArgs, num_devices, 32);

HBMPROF_PJRT_ARGS(Program)
  const char* code; size_t code_size; const char* format; size_t format_size;
HBMPROF_PJRT_END(Program, format_size, 40);
HBMPROF_PJRT_ARGS(ClientCompileArgs)
  Client* client; const Program* program; const char* compile_options; size_t compile_options_size;
  LoadedExecutable* executable;
HBMPROF_PJRT_END(ClientCompileArgs, executable, 48);
HBMPROF_PJRT_ARGS(ClientLoadArgs)
  Client* client; Executable* executable; const char* compile_options; size_t compile_options_size;
  LoadedExecutable* loaded_executable;
HBMPROF_PJRT_END(ClientLoadArgs, loaded_executable, 48);
HBMPROF_PJRT_ARGS(DeserializeAndLoadArgs)
  Client* client; const char* serialized; size_t serialized_size; LoadedExecutable* loaded_executable;
HBMPROF_PJRT_END(DeserializeAndLoadArgs, loaded_executable, 40);

HBMPROF_PJRT_ARGS(BufferFromHostBufferArgs)
  Client* client; const void* data; int type; const int64_t* dims; size_t num_dims;
  const int64_t* byte_strides; size_t num_byte_strides; int host_buffer_semantics;
  Device* device; Memory* memory; void* device_layout; Event* done_with_host_buffer; Buffer* buffer;
HBMPROF_PJRT_END(BufferFromHostBufferArgs, buffer, 112);
HBMPROF_PJRT_ARGS(CreateUninitializedArgs)
  Client* client; const int64_t* dims; size_t num_dims; int type; void* layout;
  Device* device; Memory* memory; Buffer* buffer;
HBMPROF_PJRT_END(CreateUninitializedArgs, buffer, 72);
HBMPROF_PJRT_ARGS(CreateViewArgs)
  Client* client; void* device_pointer; const int64_t* dims; size_t num_dims; int type; void* layout;
  Device* device; void* on_delete; void* on_delete_arg; intptr_t stream; Buffer* buffer; Memory* memory;
HBMPROF_PJRT_END(CreateViewArgs, memory, 104);
static_assert(offsetof(CreateViewArgs, buffer) == 96);
HBMPROF_PJRT_ARGS(CreateErrorArgs)
  Client* client; int code; const char* message; size_t message_size; const int64_t* dims; size_t num_dims; int type;
  void* layout; Memory* memory; Buffer* buffer;
HBMPROF_PJRT_END(CreateErrorArgs, buffer, 88);
HBMPROF_PJRT_ARGS(CreateAliasArgs)
  Client* client; Memory* memory; const int64_t* dims; size_t num_dims; int type; void* layout;
  Buffer* buffer; FulfillCallback* callback;
HBMPROF_PJRT_END(CreateAliasArgs, callback, 72);
HBMPROF_PJRT_ARGS(FulfillAliasArgs)
  Client* client; Buffer* buffer; int code; const char* message; size_t message_size; FulfillCallback* callback;
HBMPROF_PJRT_END(FulfillAliasArgs, callback, 56);

HBMPROF_PJRT_ARGS(ShapeSpec)
  const int64_t* dims; size_t num_dims; int type;
HBMPROF_PJRT_END(ShapeSpec, type, 32);
static_assert(sizeof(ShapeSpec) == 40);
HBMPROF_PJRT_ARGS(CreateBuffersForTransferArgs)
  Client* client; const ShapeSpec* shapes; size_t num_shapes; void** layouts; size_t num_layouts; Memory* memory;
  TransferManager* manager;
HBMPROF_PJRT_END(CreateBuffersForTransferArgs, manager, 64);
HBMPROF_PJRT_ARGS(TransferManagerDestroyArgs)
  TransferManager* manager;
HBMPROF_PJRT_END(TransferManagerDestroyArgs, manager, 16);
HBMPROF_PJRT_ARGS(TransferManagerRetrieveArgs)
  TransferManager* manager; int index; Buffer* buffer;
HBMPROF_PJRT_END(TransferManagerRetrieveArgs, buffer, 32);
HBMPROF_PJRT_ARGS(TransferManagerDeviceArgs)
  TransferManager* manager; Device* device;
HBMPROF_PJRT_END(TransferManagerDeviceArgs, device, 24);
HBMPROF_PJRT_ARGS(TransferManagerBufferSizeArgs)
  TransferManager* manager; int index; size_t size;
HBMPROF_PJRT_END(TransferManagerBufferSizeArgs, size, 32);
HBMPROF_PJRT_ARGS(DmaMapArgs)
  Client* client; void* data; size_t size;
HBMPROF_PJRT_END(DmaMapArgs, size, 32);
HBMPROF_PJRT_ARGS(DmaUnmapArgs) Client* client; void* data; HBMPROF_PJRT_END(DmaUnmapArgs, data, 24);

HBMPROF_PJRT_ARGS(DeviceGetDescriptionArgs)
  Device* device; DeviceDescription* description;
HBMPROF_PJRT_END(DeviceGetDescriptionArgs, description, 24);
HBMPROF_PJRT_ARGS(DeviceDescriptionTextArgs)
  DeviceDescription* description; const char* text; size_t text_size;
HBMPROF_PJRT_END(DeviceDescriptionTextArgs, text_size, 32);
HBMPROF_PJRT_ARGS(DeviceDefaultMemoryArgs) Device* device; Memory* memory;
HBMPROF_PJRT_END(DeviceDefaultMemoryArgs, memory, 24);
struct OptionalBytes { int64_t value; bool is_set; };
HBMPROF_PJRT_ARGS(DeviceMemoryStatsArgs)
  Device* device; int64_t bytes_in_use;
  OptionalBytes peak_bytes_in_use, num_allocs, largest_alloc_size, bytes_limit, bytes_reserved, peak_bytes_reserved,
      bytes_reservable_limit, largest_free_block_bytes, pool_bytes, peak_pool_bytes;
HBMPROF_PJRT_END(DeviceMemoryStatsArgs, peak_pool_bytes, 176);
static_assert(offsetof(DeviceMemoryStatsArgs, peak_bytes_in_use) == 32);
static_assert(offsetof(DeviceMemoryStatsArgs, bytes_limit.is_set) == 88);
static_assert(offsetof(DeviceMemoryStatsArgs, largest_free_block_bytes) == 144);
HBMPROF_PJRT_ARGS(MemoryKindArgs)
  Memory* memory; const char* kind; size_t kind_size;
HBMPROF_PJRT_END(MemoryKindArgs, kind_size, 32);
HBMPROF_PJRT_ARGS(MemoryDevicesArgs)
  Memory* memory; Device* const* devices; size_t num_devices;
HBMPROF_PJRT_END(MemoryDevicesArgs, num_devices, 32);

HBMPROF_PJRT_ARGS(ExecutableDestroyArgs) Executable* executable;
HBMPROF_PJRT_END(ExecutableDestroyArgs, executable, 16);
HBMPROF_PJRT_ARGS(ExecutableNameArgs)
  Executable* executable; const char* name; size_t name_size;
HBMPROF_PJRT_END(ExecutableNameArgs, name_size, 32);
HBMPROF_PJRT_ARGS(ExecutableNumOutputsArgs)
  Executable* executable; size_t num_outputs;
HBMPROF_PJRT_END(ExecutableNumOutputsArgs, num_outputs, 24);
HBMPROF_PJRT_ARGS(ExecutableSizeArgs)
  Executable* executable; int64_t size;
HBMPROF_PJRT_END(ExecutableSizeArgs, size, 24);
HBMPROF_PJRT_ARGS(ExecutableMemoryStatsArgs)
  Executable* executable;
  int64_t generated_code, argument, output, alias, temp;
  int64_t host_generated_code, host_argument, host_output, host_alias, host_temp;
  int64_t peak_memory;
HBMPROF_PJRT_END(ExecutableMemoryStatsArgs, peak_memory, 104);
static_assert(offsetof(ExecutableMemoryStatsArgs, temp) == 56);
HBMPROF_PJRT_ARGS(LoadedExecutableArgs)  // Destroy, Delete
  LoadedExecutable* executable;
HBMPROF_PJRT_END(LoadedExecutableArgs, executable, 16);
HBMPROF_PJRT_ARGS(GetExecutableArgs)
  LoadedExecutable* loaded_executable; Executable* executable;
HBMPROF_PJRT_END(GetExecutableArgs, executable, 24);
HBMPROF_PJRT_ARGS(ExecutableDevicesArgs)
  LoadedExecutable* executable; Device* const* devices; size_t num_devices;
HBMPROF_PJRT_END(ExecutableDevicesArgs, num_devices, 32);
HBMPROF_PJRT_ARGS(ExecuteOptions)
  void* send_callbacks; void* recv_callbacks; size_t num_send_ops; size_t num_recv_ops; int launch_id;
  const int64_t* non_donatable_inputs; size_t num_non_donatable_inputs; void* context; const char* call_location;
HBMPROF_PJRT_END(ExecuteOptions, call_location, 80);
static_assert(offsetof(ExecuteOptions, non_donatable_inputs) == 56);
HBMPROF_PJRT_ARGS(ExecuteArgs)
  LoadedExecutable* executable; ExecuteOptions* options; Buffer* const* const* argument_lists; size_t num_devices;
  size_t num_args; Buffer** const* output_lists; Event** device_complete_events; Device* execute_device;
HBMPROF_PJRT_END(ExecuteArgs, execute_device, 72);

HBMPROF_PJRT_ARGS(BufferArgs)  // Destroy, Delete, {In,De}creaseExternalReferenceCount
  Buffer* buffer;
HBMPROF_PJRT_END(BufferArgs, buffer, 16);
HBMPROF_PJRT_ARGS(BufferIsDeletedArgs) Buffer* buffer; bool is_deleted;
HBMPROF_PJRT_END(BufferIsDeletedArgs, is_deleted, 24);
HBMPROF_PJRT_ARGS(BufferElementTypeArgs) Buffer* buffer; int type;
HBMPROF_PJRT_END(BufferElementTypeArgs, type, 24);
HBMPROF_PJRT_ARGS(BufferDimensionsArgs)
  Buffer* buffer; const int64_t* dims; size_t num_dims;
HBMPROF_PJRT_END(BufferDimensionsArgs, num_dims, 32);
HBMPROF_PJRT_ARGS(BufferOnDeviceSizeArgs) Buffer* buffer; size_t size;
HBMPROF_PJRT_END(BufferOnDeviceSizeArgs, size, 24);
HBMPROF_PJRT_ARGS(BufferMemoryArgs) Buffer* buffer; Memory* memory;
HBMPROF_PJRT_END(BufferMemoryArgs, memory, 24);
HBMPROF_PJRT_ARGS(BufferCopyToDeviceArgs)
  Buffer* buffer; Device* device; Buffer* copy;
HBMPROF_PJRT_END(BufferCopyToDeviceArgs, copy, 32);
HBMPROF_PJRT_ARGS(BufferCopyToMemoryArgs)
  Buffer* buffer; Memory* memory; Buffer* copy;
HBMPROF_PJRT_END(BufferCopyToMemoryArgs, copy, 32);
HBMPROF_PJRT_ARGS(BufferBitcastArgs)
  Buffer* buffer; int type; const int64_t* dims; size_t num_dims; void* layout; Buffer* result;
HBMPROF_PJRT_END(BufferBitcastArgs, result, 56);
HBMPROF_PJRT_ARGS(DonateWithControlDependencyArgs)
  Buffer* buffer; void* callback_data; void* dependency_ready_callback; Buffer* result;
HBMPROF_PJRT_END(DonateWithControlDependencyArgs, result, 40);
// clang-format on

#undef HBMPROF_PJRT_ARGS
#undef HBMPROF_PJRT_END

}  // namespace hbmprof::internal::pjrt

#endif  // HBMPROF_SRC_BACKENDS_PJRT_ABI_H_
