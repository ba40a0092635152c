// See fake_pjrt.h. One lock protects everything: this models the ownership of memory, not speed.
#include "tests/support/fake_pjrt/fake_pjrt.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace hbmprof::internal::pjrt {

struct Error {
  int code;
  std::string message;
};
struct Event {
  int code;  // of the error that it will have; 0: none
  bool is_ready;
};
struct Memory {
  Device* device;
  std::string kind;
};
struct DeviceDescription {
  std::string debug_string;
};
struct Device {
  int index;
  DeviceDescription description;
  Memory device_memory;
  Memory host_memory;
  Device* self;
};
struct Client {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Device*> device_list;
};
// A range of a memory space, freed with its last owner.
struct Range {
  int device;
  bool on_host;
  int64_t bytes;
  std::unique_ptr<char[]> data;
  ~Range();
};
struct Buffer {
  Client* client;
  Memory* memory;
  int type;
  std::vector<int64_t> dims;
  std::shared_ptr<Range> range;
  bool deleted;
  int references;
  std::shared_ptr<Range> referenced;  // kept while `references` > 0
};
struct OutputSpec {
  int type;
  std::vector<int64_t> dims;
};
struct ProgramText {
  std::string name;
  std::vector<OutputSpec> outputs;
  std::set<int64_t> donated;
  int64_t code = 0, temp = 0, peak = 0;
};
struct LoadedExecutable {
  Client* client;
  std::shared_ptr<const ProgramText> program;
  std::vector<Device*> devices;
  bool deleted;
};
struct Executable {
  std::shared_ptr<const ProgramText> program;
};
struct TransferManager {
  Client* client;
  Memory* memory;
  std::vector<OutputSpec> shapes;
  std::vector<std::shared_ptr<Range>> ranges;
};
struct FulfillCallback {
  Buffer* alias;
};

namespace {

constexpr int kDevices = 2;
constexpr int kSlots = 160;
constexpr int kUnimplemented = 12;

struct DeviceBytes {
  int64_t device = 0, host = 0, peak = 0;
};

// Objects whose addresses are reused immediately: an allocation gets the address that was freed last.
template <typename T>
class Pool {
 public:
  T* New() {
    if (free_.empty()) {
      all_.push_back(std::make_unique<T>());
      free_.push_back(all_.back().get());
    }
    T* const object = free_.back();
    free_.pop_back();
    live_.insert(object);
    return object;
  }
  void Delete(T* object) {
    live_.erase(object);
    *object = T{};
    free_.push_back(object);
  }
  bool Owns(const T* object) const { return live_.count(const_cast<T*>(object)) != 0; }
  size_t live() const { return live_.size(); }
  const std::set<T*>& objects() const { return live_; }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
  std::set<T*> live_;
};

struct State {
  std::recursive_mutex mutex;
  int64_t capacity = int64_t{1} << 40;
  int64_t largest_request = INT64_MAX;
  bool largest_request_is_reported = false;
  bool has_memory_stats = true;
  DeviceBytes bytes[kDevices];
  std::map<int, int> failures;
  int event_failure = 0;
  bool event_failure_is_known = false;
  int64_t calls[kSlots] = {};
  int64_t errors = 0;
  Pool<Client> clients;
  Pool<Buffer> buffers;
  Pool<LoadedExecutable> loaded;
  Pool<Executable> executables;
  Pool<TransferManager> transfers;
  Pool<FulfillCallback> callbacks;
};

State& S() {
  static auto* state = new State;
  return *state;
}

Error* MakeError(int code, std::string message) {
  ++S().errors;
  return new Error{code, std::move(message)};
}

// The lock, and the failure that was ordered for this call, if any.
class Call {
 public:
  explicit Call(int slot) : lock_(S().mutex) {
    ++S().calls[slot];
    const auto failure = S().failures.find(slot);
    if (failure == S().failures.end()) return;
    error_ = MakeError(failure->second, "ordered by the test, slot " + std::to_string(slot));
    S().failures.erase(failure);
  }
  Error* error() const { return error_; }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  Error* error_ = nullptr;
};
#define FAKE_CALL(slot)       \
  const Call fake_call(slot); \
  if (fake_call.error() != nullptr) return fake_call.error()

int64_t ElementBits(int type) {
  switch (type) {
    case 1:
    case 2:
    case 6:
      return 8;
    case 3:
    case 7:
    case 10:
    case 13:
      return 16;
    case 5:
    case 9:
    case 12:
    case 14:
      return 64;
    case 15:
      return 128;
    default:
      return 32;
  }
}

int64_t PaddedBytes(int type, const std::vector<int64_t>& dims) {
  int64_t bytes = ElementBits(type) / 8;
  for (const int64_t dim : dims) bytes *= dim;
  return (bytes + kFakePjrtPadding - 1) / kFakePjrtPadding * kFakePjrtPadding;
}

// Null if the device has no memory left.
std::shared_ptr<Range> Allocate(const Memory* memory, int64_t bytes) {
  DeviceBytes& held = S().bytes[memory->device->index];
  const bool on_host = memory->kind != "device";
  if (!on_host && (bytes < 0 || bytes > std::min(S().capacity - held.device, S().largest_request))) return nullptr;
  auto range = std::make_shared<Range>();
  range->device = memory->device->index;
  range->on_host = on_host;
  range->bytes = bytes;
  // Only small ranges have host memory with addresses; tests use no addresses of larger ones.
  if (bytes <= int64_t{64} << 20) range->data.reset(new char[static_cast<size_t>(bytes)]);
  (on_host ? held.host : held.device) += bytes;
  held.peak = std::max(held.peak, held.device);
  return range;
}

Error* OutOfMemory(int64_t bytes) {
  return MakeError(kErrorResourceExhausted, "out of memory allocating " + std::to_string(bytes) + " bytes");
}

Memory* Where(Client* client, Device* device, Memory* memory) {
  if (memory != nullptr) return memory;
  return device != nullptr ? &device->device_memory : &client->devices[0]->device_memory;
}

Buffer* MakeBuffer(Client* client, Memory* memory, int type, std::vector<int64_t> dims, std::shared_ptr<Range> range) {
  Buffer* const buffer = S().buffers.New();
  *buffer = Buffer{client, memory, type, std::move(dims), std::move(range), false, 0, nullptr};
  return buffer;
}

Error* NewBuffer(Client* client, Memory* memory, int type, const int64_t* dims, size_t num_dims, Buffer** made) {
  const std::vector<int64_t> shape(dims, dims + num_dims);
  const int64_t bytes = PaddedBytes(type, shape);
  std::shared_ptr<Range> range = Allocate(memory, bytes);
  if (range == nullptr) return OutOfMemory(bytes);
  *made = MakeBuffer(client, memory, type, shape, std::move(range));
  return nullptr;
}

Error* Unknown(const char* what) {
  return MakeError(kErrorInvalidArgument, std::string("this is no live ") + what + " of this plugin");
}
#define FAKE_BUFFER(args) \
  if (!S().buffers.Owns((args)->buffer)) return Unknown("buffer")

void Drop(Buffer* buffer) {
  buffer->range = nullptr;
  buffer->deleted = true;
}

// Errors and events.

void ErrorDestroy(ErrorDestroyArgs* args) {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  ++S().calls[kErrorDestroy];
  --S().errors;
  delete args->error;
}
void ErrorMessage(ErrorMessageArgs* args) {
  args->message = args->error->message.data();
  args->message_size = args->error->message.size();
}
Error* ErrorGetCode(ErrorGetCodeArgs* args) {
  args->code = args->error->code;
  return nullptr;
}
Error* PluginInitialize(PluginInitializeArgs*) {
  FAKE_CALL(kPluginInitialize);
  return nullptr;
}
Event* NewEvent() { return new Event{std::exchange(S().event_failure, 0), S().event_failure_is_known}; }
Error* EventDestroy(EventArgs* args) {
  delete args->event;
  return nullptr;
}
Error* EventAwait(EventArgs* args) {
  FAKE_CALL(kEventAwait);
  if (args->event->code == 0) return nullptr;
  return MakeError(args->event->code, args->event->is_ready ? "the work failed" : "the work failed later");
}
Error* EventIsReady(EventIsReadyArgs* args) {
  args->is_ready = args->event->is_ready;
  return nullptr;
}

// Clients, devices, memories.

Error* ClientCreate(ClientCreateArgs* args) {
  FAKE_CALL(kClientCreate);
  Client* const client = S().clients.New();
  for (int i = 0; i < kDevices; ++i) {
    auto device = std::make_unique<Device>();
    device->index = i;
    device->description.debug_string = "FAKE_" + std::to_string(i);
    device->device_memory = {device.get(), "device"};
    device->host_memory = {device.get(), "pinned_host"};
    device->self = device.get();
    client->device_list.push_back(device.get());
    client->devices.push_back(std::move(device));
  }
  args->client = client;
  return nullptr;
}
Error* ClientDestroy(ClientDestroyArgs* args) {
  FAKE_CALL(kClientDestroy);
  if (!S().clients.Owns(args->client)) return Unknown("client");
  // As in a real runtime: the client frees its remaining objects.
  for (Buffer* buffer : std::set<Buffer*>(S().buffers.objects())) {
    if (buffer->client == args->client) S().buffers.Delete(buffer);
  }
  for (LoadedExecutable* executable : std::set<LoadedExecutable*>(S().loaded.objects())) {
    if (executable->client == args->client) S().loaded.Delete(executable);
  }
  S().clients.Delete(args->client);
  return nullptr;
}
Error* PlatformName(ClientTextArgs* args) {
  args->text = "fake";
  args->text_size = 4;
  return nullptr;
}
Error* ClientAddressableDevices(ClientAddressableDevicesArgs* args) {
  FAKE_CALL(kClientAddressableDevices);
  args->devices = args->client->device_list.data();
  args->num_devices = args->client->device_list.size();
  return nullptr;
}
Error* DeviceGetDescription(DeviceGetDescriptionArgs* args) {
  FAKE_CALL(kDeviceGetDescription);
  args->description = &args->device->description;
  return nullptr;
}
Error* DeviceDebugString(DeviceDescriptionTextArgs* args) {
  args->text = args->description->debug_string.data();
  args->text_size = args->description->debug_string.size();
  return nullptr;
}
Error* DeviceDefaultMemory(DeviceDefaultMemoryArgs* args) {
  args->memory = &args->device->device_memory;
  return nullptr;
}
Error* DeviceMemoryStats(DeviceMemoryStatsArgs* args) {
  FAKE_CALL(kDeviceMemoryStats);
  // All fields are written, as a newer plugin does: the callers must have the space for them.
  char* const end = reinterpret_cast<char*>(args) + 208;
  std::memset(static_cast<void*>(&args->bytes_in_use), 0,
              static_cast<size_t>(end - reinterpret_cast<char*>(&args->bytes_in_use)));
  if (!S().has_memory_stats) return MakeError(kUnimplemented, "this device has no statistics");
  const DeviceBytes& held = S().bytes[args->device->index];
  args->bytes_in_use = held.device + kFakePjrtOwnBytes;
  args->peak_bytes_in_use = {held.peak + kFakePjrtOwnBytes, true};
  args->bytes_limit = {S().capacity, true};
  const int64_t largest = S().largest_request_is_reported ? S().largest_request : INT64_MAX;
  args->largest_free_block_bytes = {std::min(S().capacity - held.device, largest), true};
  return nullptr;
}
Error* MemoryKindOf(MemoryKindArgs* args) {
  args->kind = args->memory->kind.data();
  args->kind_size = args->memory->kind.size();
  return nullptr;
}
Error* MemoryDevices(MemoryDevicesArgs* args) {
  args->devices = &args->memory->device->self;
  args->num_devices = 1;
  return nullptr;
}
Error* MapHost(DmaMapArgs*) {
  FAKE_CALL(kDmaMap);
  return nullptr;
}
Error* UnmapHost(DmaUnmapArgs*) {
  FAKE_CALL(kDmaUnmap);
  return nullptr;
}

// Executables.

Error* LoadText(Client* client, const std::string& text, const std::string& options, LoadedExecutable** made) {
  auto program = std::make_shared<ProgramText>();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "name") words >> program->name;
    if (word == "code") words >> program->code;
    if (word == "temp") words >> program->temp;
    if (word == "peak") words >> program->peak;
    int64_t number = 0;
    if (word == "donate" && words >> number) program->donated.insert(number);
    if (word == "output") {
      OutputSpec output;
      words >> output.type;
      while (words >> number) output.dims.push_back(number);
      program->outputs.push_back(std::move(output));
    }
  }
  if (program->name.empty()) return MakeError(kErrorInvalidArgument, "the program has no name");
  LoadedExecutable* const executable = S().loaded.New();
  const int devices = options.empty() ? 1 : std::clamp(std::atoi(options.c_str()), 1, kDevices);
  *executable = LoadedExecutable{client, program, {}, false};
  for (int i = 0; i < devices; ++i) executable->devices.push_back(client->device_list[static_cast<size_t>(i)]);
  *made = executable;
  return nullptr;
}
Error* ClientCompile(ClientCompileArgs* args) {
  FAKE_CALL(kClientCompile);
  return LoadText(args->client, {args->program->code, args->program->code_size},
                  {args->compile_options, args->compile_options_size}, &args->executable);
}
Error* Deserialize(DeserializeAndLoadArgs* args) {
  FAKE_CALL(kDeserializeAndLoad);
  return LoadText(args->client, {args->serialized, args->serialized_size}, "", &args->loaded_executable);
}
Error* LoadDescriptor(ClientLoadArgs* args) {
  FAKE_CALL(kClientLoad);
  LoadedExecutable* const executable = S().loaded.New();
  *executable = LoadedExecutable{args->client, args->executable->program, {args->client->device_list[0]}, false};
  args->loaded_executable = executable;
  return nullptr;
}
Error* LoadedDestroy(LoadedExecutableArgs* args) {
  FAKE_CALL(kLoadedExecutableDestroy);
  if (args->executable == nullptr) return nullptr;
  if (!S().loaded.Owns(args->executable)) return Unknown("executable");
  S().loaded.Delete(args->executable);
  return nullptr;
}
Error* LoadedDelete(LoadedExecutableArgs* args) {
  FAKE_CALL(kLoadedExecutableDelete);
  args->executable->deleted = true;
  return nullptr;
}
Error* GetDescriptor(GetExecutableArgs* args) {
  FAKE_CALL(kLoadedExecutableGetExecutable);
  args->executable = S().executables.New();
  args->executable->program = args->loaded_executable->program;
  return nullptr;
}
Error* DescriptorDestroy(ExecutableDestroyArgs* args) {
  FAKE_CALL(kExecutableDestroy);
  S().executables.Delete(args->executable);
  return nullptr;
}
Error* DescriptorName(ExecutableNameArgs* args) {
  args->name = args->executable->program->name.data();
  args->name_size = args->executable->program->name.size();
  return nullptr;
}
Error* DescriptorNumOutputs(ExecutableNumOutputsArgs* args) {
  args->num_outputs = args->executable->program->outputs.size();
  return nullptr;
}
Error* DescriptorSize(ExecutableSizeArgs* args) {
  args->size = args->executable->program->code;
  return nullptr;
}
Error* DescriptorMemoryStats(ExecutableMemoryStatsArgs* args) {
  // Writes all fields of the newest version, even for a caller of an older version.
  std::memset(static_cast<void*>(&args->generated_code), 0, 144 - 24);
  args->generated_code = args->executable->program->code;
  args->temp = args->executable->program->temp;
  args->peak_memory = args->executable->program->peak;
  return nullptr;
}
Error* LoadedDevices(ExecutableDevicesArgs* args) {
  args->devices = args->executable->devices.data();
  args->num_devices = args->executable->devices.size();
  return nullptr;
}
Error* Execute(ExecuteArgs* args) {
  FAKE_CALL(kLoadedExecutableExecute);
  if (!S().loaded.Owns(args->executable)) return Unknown("executable");
  const ProgramText& program = *args->executable->program;
  const auto donates = [&](size_t argument) {
    const ExecuteOptions& options = *args->options;
    const int64_t* const end = options.non_donatable_inputs + options.num_non_donatable_inputs;
    return program.donated.count(static_cast<int64_t>(argument)) != 0 &&
           std::find(options.non_donatable_inputs, end, static_cast<int64_t>(argument)) == end;
  };
  for (size_t d = 0; d < args->num_devices; ++d) {
    for (size_t a = 0; a < args->num_args; ++a) {
      const Buffer* const buffer = args->argument_lists[d][a];
      if (!S().buffers.Owns(buffer) || buffer->deleted) return Unknown("argument");
    }
  }
  // Donated buffers are freed, also if the rest of the call fails.
  for (size_t d = 0; d < args->num_devices; ++d) {
    for (size_t a = 0; a < args->num_args; ++a) {
      if (donates(a)) Drop(args->argument_lists[d][a]);
    }
  }
  std::vector<std::vector<std::shared_ptr<Range>>> ranges(args->num_devices);
  const auto device_of = [&](size_t d) {
    return args->execute_device != nullptr ? args->execute_device : args->executable->devices[d];
  };
  for (size_t d = 0; d < args->num_devices; ++d) {
    for (const OutputSpec& output : program.outputs) {
      const int64_t bytes = PaddedBytes(output.type, output.dims);
      ranges[d].push_back(Allocate(&device_of(d)->device_memory, bytes));
      if (ranges[d].back() == nullptr) return OutOfMemory(bytes);
    }
  }
  for (size_t d = 0; d < args->num_devices; ++d) {
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      args->output_lists[d][i] = MakeBuffer(args->executable->client, &device_of(d)->device_memory,
                                            program.outputs[i].type, program.outputs[i].dims, ranges[d][i]);
    }
    if (args->device_complete_events != nullptr) args->device_complete_events[d] = NewEvent();
  }
  return nullptr;
}

// Buffers.

Error* FromHost(BufferFromHostBufferArgs* args) {
  FAKE_CALL(kBufferFromHostBuffer);
  Error* const error = NewBuffer(args->client, Where(args->client, args->device, args->memory), args->type, args->dims,
                                 args->num_dims, &args->buffer);
  if (error == nullptr) args->done_with_host_buffer = NewEvent();
  return error;
}
Error* Uninitialized(CreateUninitializedArgs* args) {
  FAKE_CALL(kCreateUninitialized);
  return NewBuffer(args->client, Where(args->client, args->device, args->memory), args->type, args->dims,
                   args->num_dims, &args->buffer);
}
Error* CopyTo(const Buffer* source, Memory* memory, Buffer** copy) {
  return NewBuffer(source->client, memory, source->type, source->dims.data(), source->dims.size(), copy);
}
Error* CopyToDevice(BufferCopyToDeviceArgs* args) {
  FAKE_CALL(kBufferCopyToDevice);
  FAKE_BUFFER(args);
  return CopyTo(args->buffer, &args->device->device_memory, &args->copy);
}
Error* CopyToMemory(BufferCopyToMemoryArgs* args) {
  FAKE_CALL(kBufferCopyToMemory);
  FAKE_BUFFER(args);
  return CopyTo(args->buffer, args->memory, &args->copy);
}
Error* View(CreateViewArgs* args) {
  FAKE_CALL(kCreateView);
  args->buffer = MakeBuffer(args->client, Where(args->client, args->device, nullptr), args->type,
                            {args->dims, args->dims + args->num_dims}, nullptr);
  return nullptr;
}
Error* ErrorBuffer(CreateErrorArgs* args) {
  FAKE_CALL(kCreateError);
  args->buffer = MakeBuffer(args->client, args->memory, args->type, {args->dims, args->dims + args->num_dims}, nullptr);
  return nullptr;
}
Error* AliasBuffer(CreateAliasArgs* args) {
  FAKE_CALL(kCreateAlias);
  args->buffer = MakeBuffer(args->client, args->memory, args->type, {args->dims, args->dims + args->num_dims}, nullptr);
  args->callback = S().callbacks.New();
  args->callback->alias = args->buffer;
  return nullptr;
}
Error* Fulfill(FulfillAliasArgs* args) {
  FAKE_CALL(kFulfillAlias);
  if (args->buffer != nullptr) args->callback->alias->range = args->buffer->range;
  S().callbacks.Delete(args->callback);
  return nullptr;
}
Error* Bitcast(BufferBitcastArgs* args) {
  FAKE_CALL(kBufferBitcast);
  FAKE_BUFFER(args);
  args->result = MakeBuffer(args->buffer->client, args->buffer->memory, args->type,
                            {args->dims, args->dims + args->num_dims}, args->buffer->range);
  return nullptr;
}
Error* Donate(DonateWithControlDependencyArgs* args) {
  FAKE_CALL(kDonateWithControlDependency);
  FAKE_BUFFER(args);
  Buffer* const source = args->buffer;
  args->result = MakeBuffer(source->client, source->memory, source->type, source->dims, source->range);
  Drop(source);
  return nullptr;
}
std::atomic<void (*)()> on_destroyed{nullptr};

Error* BufferDestroy(BufferArgs* args) {
  {
    FAKE_CALL(kBufferDestroy);
    if (args->buffer == nullptr) return nullptr;
    FAKE_BUFFER(args);
    S().buffers.Delete(args->buffer);
  }
  if (const auto hook = on_destroyed.load()) hook();
  return nullptr;
}
Error* BufferDelete(BufferArgs* args) {
  FAKE_CALL(kBufferDelete);
  FAKE_BUFFER(args);
  Drop(args->buffer);
  return nullptr;
}
Error* IsDeleted(BufferIsDeletedArgs* args) {
  FAKE_CALL(kBufferIsDeleted);
  FAKE_BUFFER(args);
  args->is_deleted = args->buffer->deleted;
  return nullptr;
}
Error* ElementType(BufferElementTypeArgs* args) {
  args->type = args->buffer->type;
  return nullptr;
}
Error* Dimensions(BufferDimensionsArgs* args) {
  args->dims = args->buffer->dims.data();
  args->num_dims = args->buffer->dims.size();
  return nullptr;
}
Error* OnDeviceSize(BufferOnDeviceSizeArgs* args) {
  FAKE_CALL(kBufferOnDeviceSize);
  args->size = static_cast<size_t>(PaddedBytes(args->buffer->type, args->buffer->dims));
  return nullptr;
}
Error* MemoryOf(BufferMemoryArgs* args) {
  FAKE_CALL(kBufferMemory);
  args->memory = args->buffer->memory;
  return nullptr;
}
Error* AddReference(BufferArgs* args) {
  FAKE_CALL(kBufferIncreaseReferences);
  FAKE_BUFFER(args);
  if (args->buffer->references++ == 0) args->buffer->referenced = args->buffer->range;
  return nullptr;
}
Error* DropReference(BufferArgs* args) {
  FAKE_CALL(kBufferDecreaseReferences);
  FAKE_BUFFER(args);
  if (args->buffer->references == 0) return MakeError(kErrorInvalidArgument, "the reference count is zero");
  if (--args->buffer->references == 0) args->buffer->referenced = nullptr;
  return nullptr;
}
Error* DevicePointer(BufferDevicePointerArgs* args) {
  args->pointer = args->buffer->range == nullptr ? nullptr : args->buffer->range->data.get();
  return nullptr;
}

// Transfers.

Error* TransferCreate(CreateBuffersForTransferArgs* args) {
  FAKE_CALL(kCreateBuffersForTransfer);
  TransferManager transfer{args->client, Where(args->client, nullptr, args->memory), {}, {}};
  for (size_t i = 0; i < args->num_shapes; ++i) {
    const ShapeSpec& spec = args->shapes[i];
    transfer.shapes.push_back({spec.type, {spec.dims, spec.dims + spec.num_dims}});
    const int64_t bytes = PaddedBytes(spec.type, transfer.shapes.back().dims);
    transfer.ranges.push_back(Allocate(transfer.memory, bytes));
    if (transfer.ranges.back() == nullptr) return OutOfMemory(bytes);
  }
  args->manager = S().transfers.New();
  *args->manager = std::move(transfer);
  return nullptr;
}
Error* TransferRetrieve(TransferManagerRetrieveArgs* args) {
  FAKE_CALL(kTransferManagerRetrieve);
  TransferManager& transfer = *args->manager;
  const auto index = static_cast<size_t>(args->index);
  if (index >= transfer.ranges.size() || transfer.ranges[index] == nullptr) return Unknown("buffer of the transfer");
  args->buffer = MakeBuffer(transfer.client, transfer.memory, transfer.shapes[index].type, transfer.shapes[index].dims,
                            std::exchange(transfer.ranges[index], nullptr));
  return nullptr;
}
Error* TransferDestroy(TransferManagerDestroyArgs* args) {
  FAKE_CALL(kTransferManagerDestroy);
  S().transfers.Delete(args->manager);
  return nullptr;
}
Error* TransferDevice(TransferManagerDeviceArgs* args) {
  args->device = args->manager->memory->device;
  return nullptr;
}
Error* TransferSize(TransferManagerBufferSizeArgs* args) {
  const OutputSpec& shape = args->manager->shapes[static_cast<size_t>(args->index)];
  args->size = static_cast<size_t>(PaddedBytes(shape.type, shape.dims));
  return nullptr;
}

Error* FutureCall(void*) {
  FAKE_CALL(kFakePjrtFutureSlot);
  return nullptr;
}
// The function in all slots that are not modelled.
Error* NotModelled(void*) { return MakeError(kUnimplemented, "not modelled by the fake plugin"); }

struct Table {
  Api api;
  void* slots[kSlots];
};

// A test checks that the profiler does not change the extensions of a table.
int extension;

Table* MakeTable(int minor, int slots) {
  auto* const table = new Table{};
  table->api.struct_size = OffsetOf(slots);
  table->api.extension_start = &extension;
  table->api.version = {24, nullptr, kMajorVersion, minor};
  const auto set = [&](int slot, auto* function) {
    if (slot < slots) table->slots[slot] = reinterpret_cast<void*>(function);
  };
  for (int slot = 0; slot < slots; ++slot) set(slot, &NotModelled);
  set(kErrorDestroy, &ErrorDestroy);
  set(kErrorMessage, &ErrorMessage);
  set(kErrorGetCode, &ErrorGetCode);
  set(kPluginInitialize, &PluginInitialize);
  set(kEventDestroy, &EventDestroy);
  set(kEventIsReady, &EventIsReady);
  set(kEventError, &EventAwait);
  set(kEventAwait, &EventAwait);
  set(kClientCreate, &ClientCreate);
  set(kClientDestroy, &ClientDestroy);
  set(kClientPlatformName, &PlatformName);
  set(kClientAddressableDevices, &ClientAddressableDevices);
  set(kClientCompile, &ClientCompile);
  set(kBufferFromHostBuffer, &FromHost);
  set(kDeviceDescriptionDebugString, &DeviceDebugString);
  set(kDeviceGetDescription, &DeviceGetDescription);
  set(kDeviceDefaultMemory, &DeviceDefaultMemory);
  set(kDeviceMemoryStats, &DeviceMemoryStats);
  set(kMemoryKind, &MemoryKindOf);
  set(kMemoryAddressableByDevices, &MemoryDevices);
  set(kExecutableDestroy, &DescriptorDestroy);
  set(kExecutableName, &DescriptorName);
  set(kExecutableNumOutputs, &DescriptorNumOutputs);
  set(kExecutableSizeOfGeneratedCode, &DescriptorSize);
  set(kLoadedExecutableDestroy, &LoadedDestroy);
  set(kLoadedExecutableGetExecutable, &GetDescriptor);
  set(kLoadedExecutableAddressableDevices, &LoadedDevices);
  set(kLoadedExecutableDelete, &LoadedDelete);
  set(kLoadedExecutableExecute, &Execute);
  set(kDeserializeAndLoad, &Deserialize);
  set(kBufferDestroy, &BufferDestroy);
  set(kBufferElementType, &ElementType);
  set(kBufferDimensions, &Dimensions);
  set(kBufferOnDeviceSize, &OnDeviceSize);
  set(kBufferMemory, &MemoryOf);
  set(kBufferDelete, &BufferDelete);
  set(kBufferIsDeleted, &IsDeleted);
  set(kBufferCopyToDevice, &CopyToDevice);
  set(kBufferIncreaseReferences, &AddReference);
  set(kBufferDecreaseReferences, &DropReference);
  set(kBufferDevicePointer, &DevicePointer);
  set(kBufferCopyToMemory, &CopyToMemory);
  set(kCreateView, &View);
  set(kExecutableMemoryStats, &DescriptorMemoryStats);
  set(kTransferManagerDestroy, &TransferDestroy);
  set(kCreateBuffersForTransfer, &TransferCreate);
  set(kTransferManagerRetrieve, &TransferRetrieve);
  set(kTransferManagerDevice, &TransferDevice);
  set(kTransferManagerBufferSize, &TransferSize);
  set(kDmaMap, &MapHost);
  set(kDmaUnmap, &UnmapHost);
  set(kCreateUninitialized, &Uninitialized);
  set(kCreateAlias, &AliasBuffer);
  set(kFulfillAlias, &Fulfill);
  set(kCreateError, &ErrorBuffer);
  set(kDonateWithControlDependency, &Donate);
  set(kClientLoad, &LoadDescriptor);
  set(kBufferBitcast, &Bitcast);
  set(kFakePjrtFutureSlot, &FutureCall);
  return table;
}

}  // namespace

Range::~Range() {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  (on_host ? S().bytes[device].host : S().bytes[device].device) -= bytes;
}

}  // namespace hbmprof::internal::pjrt

using namespace hbmprof::internal::pjrt;  // NOLINT: the rest is its C interface

extern "C" {

const Api* fake_pjrt_table(int minor) {
  // Slots as the versions have them.
  static Table* const old = MakeTable(56, 101);
  static Table* const v57 = MakeTable(57, 101);
  static Table* const v81 = MakeTable(81, 118);
  static Table* const newest = MakeTable(kFakePjrtNewest, 138);
  static Table* const future = MakeTable(kFakePjrtFuture, kSlots);
  for (Table* table : {old, v57, v81, newest, future}) {
    if (table->api.version.minor == minor) return &table->api;
  }
  return nullptr;
}

const Api* GetPjrtApi() { return fake_pjrt_table(kFakePjrtNewest); }

void fake_pjrt_reset(int64_t device_capacity) {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  S().capacity = device_capacity;
  S().largest_request = INT64_MAX;
  S().largest_request_is_reported = false;
  S().has_memory_stats = true;
  S().failures.clear();
  S().event_failure = 0;
  std::fill(std::begin(S().calls), std::end(S().calls), 0);
  for (DeviceBytes& held : S().bytes) held.peak = held.device;
}

void fake_pjrt_limit_requests(int64_t bytes, bool is_reported) {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  S().largest_request = bytes;
  S().largest_request_is_reported = is_reported;
}

void fake_pjrt_hide_memory_stats() {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  S().has_memory_stats = false;
}

void fake_pjrt_fail_next(int slot, int code) {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  S().failures[slot] = code;
}
void fake_pjrt_fail_next_event(int code, bool is_known) {
  const std::lock_guard<std::recursive_mutex> lock(S().mutex);
  S().event_failure = code;
  S().event_failure_is_known = is_known;
}

void fake_pjrt_on_destroyed(void (*hook)()) { on_destroyed.store(hook); }

// Under the lock.
#define FAKE_READ(expression)                                  \
  const std::lock_guard<std::recursive_mutex> lock(S().mutex); \
  return static_cast<int64_t>(expression)

int64_t fake_pjrt_device_bytes(int index) { FAKE_READ(S().bytes[index].device); }
int64_t fake_pjrt_host_bytes(int index) { FAKE_READ(S().bytes[index].host); }
int64_t fake_pjrt_peak_bytes(int index) { FAKE_READ(S().bytes[index].peak); }
Memory* fake_pjrt_host_memory(Memory* device_memory) { return &device_memory->device->host_memory; }
int64_t fake_pjrt_calls(int slot) { FAKE_READ(S().calls[slot]); }
int64_t fake_pjrt_live_errors() { FAKE_READ(S().errors); }
int64_t fake_pjrt_live_descriptors() { FAKE_READ(S().executables.live()); }
int64_t fake_pjrt_live_buffers() { FAKE_READ(S().buffers.live()); }
}
