// Questions to a plugin. Whatever it answers, or does not, becomes a value that can be recorded.
#include "src/backends/pjrt/plugin.h"

#include <iterator>
#include <string_view>
#include <utility>

namespace hbmprof::internal {
namespace {

using pjrt::Slot;

// Of what is asked of every buffer, every time.
constexpr size_t kSmall = 64;

constexpr char kUnknownDevice[] = "unknown";

std::string Text(const char* text, size_t size) { return text == nullptr ? std::string() : std::string(text, size); }

}  // namespace

std::string PjrtShapeText(int type, const int64_t* dims, size_t num_dims) {
  const bool known = type > 0 && static_cast<size_t>(type) < std::size(pjrt::kElementTypeNames);
  std::string shape = known ? pjrt::kElementTypeNames[type] : "type" + std::to_string(type);
  shape += '[';
  for (size_t i = 0; i < num_dims; ++i) shape.append(i == 0 ? "" : ",").append(std::to_string(dims[i]));
  return shape += ']';
}

void PjrtPlugin::Discard(pjrt::Error* error) const {
  if (!Has(Slot::kErrorDestroy)) return;
  PjrtQuestion<pjrt::ErrorDestroyArgs> question;
  question.args.error = error;
  // The one function that returns nothing.
  reinterpret_cast<void (*)(pjrt::ErrorDestroyArgs*)>(Function(Slot::kErrorDestroy))(&question.args);
}

int PjrtPlugin::CodeOf(const pjrt::Error* error) const {
  PjrtQuestion<pjrt::ErrorGetCodeArgs> question;
  question.args.error = error;
  return Ask(Slot::kErrorGetCode, &question) ? question.args.code : -1;
}

std::vector<pjrt::Device*> PjrtPlugin::AddressableDevices(pjrt::Client* client) const {
  PjrtQuestion<pjrt::ClientAddressableDevicesArgs> question;
  question.args.client = client;
  if (!Ask(Slot::kClientAddressableDevices, &question)) return {};
  return {question.args.devices, question.args.devices + question.args.num_devices};
}

std::string PjrtPlugin::AskName(pjrt::Device* device) const {
  PjrtQuestion<pjrt::DeviceGetDescriptionArgs> description;
  description.args.device = device;
  if (!Ask(Slot::kDeviceGetDescription, &description)) return {};
  PjrtQuestion<pjrt::DeviceDescriptionTextArgs> text;
  text.args.description = description.args.description;
  return Ask(Slot::kDeviceDescriptionDebugString, &text) ? Text(text.args.text, text.args.text_size) : std::string();
}

DeviceProbe PjrtPlugin::Probe(const PjrtPlugin& plugin, pjrt::Device* device) {
  DeviceProbe probe;
  PjrtQuestion<pjrt::DeviceMemoryStatsArgs> question;
  question.args.device = device;
  if (!plugin.Ask(Slot::kDeviceMemoryStats, &question)) return probe;
  const auto known = [](const pjrt::OptionalBytes& bytes) -> std::optional<int64_t> {
    if (!bytes.is_set || bytes.value < 0) return std::nullopt;
    return bytes.value;
  };
  // 0 of 0 bytes is how a plugin without statistics answers when it does not say that it has none.
  if (question.args.bytes_in_use == 0 && known(question.args.bytes_limit).value_or(0) == 0) return probe;
  probe.driver_bytes_in_use = question.args.bytes_in_use;
  probe.driver_scope = DriverScope::kProcess;  // a plugin knows of its own clients only
  probe.driver_peak_bytes_in_use = known(question.args.peak_bytes_in_use);
  probe.bytes_limit = known(question.args.bytes_limit);
  probe.largest_free_block_bytes = known(question.args.largest_free_block_bytes);
  return probe;
}

void PjrtPlugin::ClientCreated(pjrt::Client* client) {
  const std::vector<pjrt::Device*> devices = AddressableDevices(client);
  std::vector<DeviceId> ids;
  for (pjrt::Device* device : devices) ids.push_back(DeviceOf(client, device));
  {
    // Before there are probes: what is not noted here would not be removed.
    MutexLock lock(mutex_);
    probed_[client] = ids;
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    pjrt::Device* const device = devices[i];
    profiler_.SetDeviceProbe(
        ids[i], [this, device] { return Probe(*this, device); }, client);
  }
}

void PjrtPlugin::ClientDestroyed(pjrt::Client* client) {
  std::vector<DeviceId> probed;
  {
    MutexLock lock(mutex_);
    if (const auto found = probed_.find(client); found != probed_.end()) {
      probed = std::move(found->second);
      probed_.erase(found);
    }
    for (auto place = places_.begin(); place != places_.end();) {
      // What belongs to nobody known is asked again when it is needed.
      if (place->second.client == client || place->second.client == nullptr) {
        place = places_.erase(place);
      } else {
        ++place;
      }
    }
  }
  for (const DeviceId device : probed) profiler_.RemoveDeviceProbe(device, client);
}

DeviceId PjrtPlugin::DeviceOf(PjrtHandle client, pjrt::Device* device) {
  if (device == nullptr) return profiler_.Device(kUnknownDevice);
  {
    MutexLock lock(mutex_);
    const auto found = places_.find(device);
    if (found != places_.end()) return found->second.place.attributes.device;
  }
  std::string name = AskName(device);
  if (name.empty()) name = kUnknownDevice;
  const DeviceId id = profiler_.Device(name);
  MutexLock lock(mutex_);
  places_[device] = {client, {{id, MemoryKind::kDevice, {}}, ""}};
  names_[id] = name;
  return id;
}

std::string PjrtPlugin::NameOf(DeviceId device) {
  MutexLock lock(mutex_);
  const auto found = names_.find(device);
  return found == names_.end() ? kUnknownDevice : found->second;
}

PjrtPlugin::Place PjrtPlugin::AskPlace(PjrtHandle client, pjrt::Memory* memory) {
  Place place;
  PjrtQuestion<pjrt::MemoryKindArgs> kind;
  kind.args.memory = memory;
  if (Ask(Slot::kMemoryKind, &kind)) place.space = Text(kind.args.kind, kind.args.kind_size);
  PjrtQuestion<pjrt::MemoryDevicesArgs> devices;
  devices.args.memory = memory;
  bool is_default = false;
  if (Ask(Slot::kMemoryAddressableByDevices, &devices) && devices.args.num_devices > 0) {
    pjrt::Device* const device = devices.args.devices[0];
    place.attributes.device = DeviceOf(client, device);
    PjrtQuestion<pjrt::DeviceDefaultMemoryArgs> of_device;
    of_device.args.device = device;
    is_default = Ask(Slot::kDeviceDefaultMemory, &of_device) && of_device.args.memory == memory;
  } else {
    place.attributes.device = DeviceOf(client, nullptr);
  }
  // A device's own memory counts as such by whatever name: on a CPU that may be one of the host's.
  if (!is_default && place.space.find("host") != std::string::npos) place.attributes.kind = MemoryKind::kPinnedHost;
  return place;
}

PjrtPlugin::Place PjrtPlugin::PlaceOf(PjrtHandle client, pjrt::Device* device, pjrt::Memory* memory) {
  if (memory == nullptr) return {{DeviceOf(client, device), MemoryKind::kDevice, {}}, ""};
  {
    MutexLock lock(mutex_);
    const auto found = places_.find(memory);
    if (found != places_.end()) return found->second.place;
  }
  Place place = AskPlace(client, memory);
  MutexLock lock(mutex_);
  places_[memory] = {client, place};
  return place;
}

size_t PjrtPlugin::SizeOf(pjrt::Buffer* buffer) const {
  PjrtQuestion<pjrt::BufferOnDeviceSizeArgs, kSmall> question;
  question.args.buffer = buffer;
  return Ask(Slot::kBufferOnDeviceSize, &question) ? question.args.size : 0;
}

bool PjrtPlugin::IsDeleted(pjrt::Buffer* buffer) const {
  PjrtQuestion<pjrt::BufferIsDeletedArgs, kSmall> question;
  question.args.buffer = buffer;
  return Ask(Slot::kBufferIsDeleted, &question) && question.args.is_deleted;
}

PjrtMemory PjrtPlugin::Describe(PjrtHandle client, pjrt::Buffer* buffer, pjrt::Device* device, pjrt::Memory* memory) {
  if (memory != nullptr) device = nullptr;
  PjrtQuestion<pjrt::BufferMemoryArgs> where;
  where.args.buffer = buffer;
  if (Ask(Slot::kBufferMemory, &where) && where.args.memory != nullptr) memory = where.args.memory;
  const Place place = PlaceOf(client, device, memory);
  PjrtMemory described;
  described.bytes = SizeOf(buffer);
  described.attributes = place.attributes;
  described.space = place.space;
  // A memory space may be of several devices; the call knows which one it was.
  if (device != nullptr) described.attributes.device = DeviceOf(client, device);
  PjrtQuestion<pjrt::BufferElementTypeArgs> type;
  type.args.buffer = buffer;
  PjrtQuestion<pjrt::BufferDimensionsArgs> dimensions;
  dimensions.args.buffer = buffer;
  if (Ask(Slot::kBufferElementType, &type) && Ask(Slot::kBufferDimensions, &dimensions)) {
    described.shape = PjrtShapeText(type.args.type, dimensions.args.dims, dimensions.args.num_dims);
  }
  return described;
}

std::shared_ptr<PjrtProgram> PjrtPlugin::DescribeProgram(PjrtHandle client, pjrt::LoadedExecutable* executable) {
  auto program = std::make_shared<PjrtProgram>();
  program->client = client;
  PjrtQuestion<pjrt::ExecutableDevicesArgs> devices;
  devices.args.executable = executable;
  if (Ask(Slot::kLoadedExecutableAddressableDevices, &devices)) {
    for (size_t i = 0; i < devices.args.num_devices; ++i) {
      program->devices.push_back(DeviceOf(client, devices.args.devices[i]));
    }
  }
  // The descriptor is the plugin's to make and ours to destroy.
  PjrtQuestion<pjrt::GetExecutableArgs> get;
  get.args.loaded_executable = executable;
  if (!Ask(Slot::kLoadedExecutableGetExecutable, &get)) return program;
  PjrtQuestion<pjrt::ExecutableNameArgs> name;
  name.args.executable = get.args.executable;
  if (Ask(Slot::kExecutableName, &name)) program->name = Text(name.args.name, name.args.name_size);
  PjrtQuestion<pjrt::ExecutableNumOutputsArgs> outputs;
  outputs.args.executable = get.args.executable;
  if (Ask(Slot::kExecutableNumOutputs, &outputs)) program->num_outputs = outputs.args.num_outputs;
  PjrtQuestion<pjrt::ExecutableSizeArgs> size;
  size.args.executable = get.args.executable;
  if (Ask(Slot::kExecutableSizeOfGeneratedCode, &size)) program->code_bytes = size.args.size;
  PjrtQuestion<pjrt::ExecutableMemoryStatsArgs> stats;
  stats.args.executable = get.args.executable;
  if (Ask(Slot::kExecutableMemoryStats, &stats)) {
    program->temp_bytes = stats.args.temp;
    program->peak_bytes = stats.args.peak_memory;
  }
  PjrtQuestion<pjrt::ExecutableDestroyArgs> destroy;
  destroy.args.executable = get.args.executable;
  Ask(Slot::kExecutableDestroy, &destroy);
  return program;
}

}  // namespace hbmprof::internal
