// Each query returns a value that can be recorded, also if the plugin does not have the function or returns an error.
#include "src/backends/pjrt/plugin.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <string_view>
#include <utility>

namespace hbmprof::internal {
namespace {

using pjrt::Slot;

// The storage of queries that are made for every buffer. It is small, because it is set to zero each time.
constexpr size_t kSmall = 64;

constexpr char kUnknownDevice[] = "unknown";

// A plugin may pass a number below 0 for a size that it does not know.
std::optional<int64_t> Reported(int64_t bytes) { return bytes < 0 ? std::nullopt : std::optional<int64_t>(bytes); }

// Returns the number of bytes at the beginning of `text`, such as "512 bytes", "1.50GiB" or "8.00M"; nullopt if there
// is none.
std::optional<size_t> LeadingBytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  uint64_t whole = 0;
  const auto [number_end, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc()) return std::nullopt;
  const char* at = number_end;
  double fraction = 0;
  if (at != end && *at == '.') {
    for (double digit = 0.1; ++at != end && *at >= '0' && *at <= '9'; digit /= 10) fraction += digit * (*at - '0');
  }
  if (at != end && *at == ' ') ++at;
  const char* const unit_end = std::find_if_not(at, end, [](unsigned char byte) { return std::isalpha(byte) != 0; });
  std::string_view unit(at, static_cast<size_t>(unit_end - at));
  unsigned shift = 0;
  if (!unit.empty()) {
    shift = 10 * static_cast<unsigned>(std::string_view("KMGT").find(unit[0]) + 1);  // 0 if it is none of them
    if (shift != 0) unit.remove_prefix(1);
  }
  const bool is_unit = shift == 0 ? unit == "bytes" || unit == "B" : unit.empty() || unit == "B" || unit == "iB";
  if (!is_unit || whole >= uint64_t{1} << (63 - shift)) return std::nullopt;
  return (whole << shift) + static_cast<size_t>(fraction * static_cast<double>(uint64_t{1} << shift));
}

std::string Text(const char* text, size_t size) { return text == nullptr ? std::string() : std::string(text, size); }

}  // namespace

std::optional<size_t> PjrtRequestedBytes(std::string_view message) {
  for (const std::string_view before : {"allocate ", "allocating ", "reserve "}) {
    const size_t found = message.find(before);
    if (found == std::string_view::npos) continue;
    if (const std::optional<size_t> bytes = LeadingBytes(message.substr(found + before.size()))) return bytes;
  }
  return std::nullopt;
}

std::string PjrtShapeText(int type, const int64_t* dims, size_t num_dims) {
  const bool known = type > 0 && static_cast<size_t>(type) < std::size(pjrt::kElementTypeNames);
  std::string shape = known ? pjrt::kElementTypeNames[type] : "type" + std::to_string(type);
  shape += '[';
  for (size_t i = 0; i < num_dims; ++i) shape.append(i == 0 ? "" : ",").append(std::to_string(dims[i]));
  return shape += ']';
}

void PjrtPlugin::Discard(pjrt::Error* error) const {
  if (!Has(Slot::kErrorDestroy)) return;
  PjrtQuery<pjrt::ErrorDestroyArgs> query;
  query.args.error = error;
  // This function, unlike most others, returns void.
  reinterpret_cast<void (*)(pjrt::ErrorDestroyArgs*)>(Function(Slot::kErrorDestroy))(&query.args);
}

std::optional<int> PjrtPlugin::CodeOf(const pjrt::Error* error) const {
  PjrtQuery<pjrt::ErrorGetCodeArgs> query;
  query.args.error = error;
  if (!Query(Slot::kErrorGetCode, &query)) return std::nullopt;
  return query.args.code;
}

std::string_view PjrtPlugin::MessageOf(const pjrt::Error* error) const {
  if (!Has(Slot::kErrorMessage)) return {};
  PjrtQuery<pjrt::ErrorMessageArgs> query;
  query.args.error = error;
  // Like ErrorDestroy, this function returns void.
  reinterpret_cast<void (*)(pjrt::ErrorMessageArgs*)>(Function(Slot::kErrorMessage))(&query.args);
  if (query.args.message == nullptr) return {};
  return {query.args.message, query.args.message_size};
}

pjrt::Error* PjrtPlugin::FailureOf(pjrt::Event* event) const {
  PjrtQuery<pjrt::EventIsReadyArgs, kSmall> ready;
  ready.args.event = event;
  if (!Query(Slot::kEventIsReady, &ready) || !ready.args.is_ready || !Has(Slot::kEventError)) return nullptr;
  PjrtQuery<pjrt::EventArgs> query;
  query.args.event = event;
  return Call(Slot::kEventError, &query.args);
}

std::vector<pjrt::Device*> PjrtPlugin::AddressableDevices(pjrt::Client* client) const {
  PjrtQuery<pjrt::ClientAddressableDevicesArgs> query;
  query.args.client = client;
  if (!Query(Slot::kClientAddressableDevices, &query)) return {};
  return {query.args.devices, query.args.devices + query.args.num_devices};
}

std::string PjrtPlugin::QueryName(pjrt::Device* device) const {
  PjrtQuery<pjrt::DeviceGetDescriptionArgs> description;
  description.args.device = device;
  if (!Query(Slot::kDeviceGetDescription, &description)) return {};
  PjrtQuery<pjrt::DeviceDescriptionTextArgs> text;
  text.args.description = description.args.description;
  return Query(Slot::kDeviceDescriptionDebugString, &text) ? Text(text.args.text, text.args.text_size) : std::string();
}

DeviceProbe PjrtPlugin::Probe(const PjrtPlugin& plugin, pjrt::Device* device) {
  DeviceProbe probe;
  PjrtQuery<pjrt::DeviceMemoryStatsArgs> query;
  query.args.device = device;
  if (!plugin.Query(Slot::kDeviceMemoryStats, &query)) return probe;
  const auto known = [](const pjrt::OptionalBytes& bytes) -> std::optional<int64_t> {
    return bytes.is_set ? Reported(bytes.value) : std::nullopt;
  };
  // Some plugins without statistics answer with zeros instead of an error.
  if (query.args.bytes_in_use == 0 && known(query.args.bytes_limit).value_or(0) == 0) return probe;
  probe.driver_bytes_in_use = query.args.bytes_in_use;
  probe.driver_scope = DriverScope::kProcess;  // a plugin knows only its own clients
  probe.driver_peak_bytes_in_use = known(query.args.peak_bytes_in_use);
  probe.bytes_limit = known(query.args.bytes_limit);
  // XLA's allocators do not set it, so it is 0 although memory is free.
  probe.largest_free_block_bytes = known(query.args.largest_free_block_bytes);
  if (probe.largest_free_block_bytes == 0) probe.largest_free_block_bytes.reset();
  return probe;
}

void PjrtPlugin::ClientCreated(pjrt::Client* client) {
  const std::vector<pjrt::Device*> devices = AddressableDevices(client);
  std::vector<DeviceId> ids;
  for (pjrt::Device* device : devices) ids.push_back(DeviceOf(client, device));
  {
    // Before the probes are set: ClientDestroyed removes the probes that are listed here.
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
    if (auto ended = probed_.extract(client); !ended.empty()) probed = std::move(ended.mapped());
    for (auto location = locations_.begin(); location != locations_.end();) {
      // An entry without a client may belong to this one. It is queried again when it is needed.
      if (location->second.client == client || location->second.client == nullptr) {
        location = locations_.erase(location);
      } else {
        ++location;
      }
    }
  }
  for (const DeviceId device : probed) profiler_.RemoveDeviceProbe(device, client);
}

DeviceId PjrtPlugin::DeviceOf(PjrtHandle client, pjrt::Device* device) {
  if (device == nullptr) return profiler_.Device(kUnknownDevice);
  {
    MutexLock lock(mutex_);
    const auto found = locations_.find(device);
    if (found != locations_.end()) return found->second.location.attributes.device;
  }
  std::string name = QueryName(device);
  if (name.empty()) name = kUnknownDevice;
  const DeviceId id = profiler_.Device(name);
  MutexLock lock(mutex_);
  locations_[device] = {client, {{id, MemoryKind::kDevice, {}}, ""}};
  names_[id] = name;
  return id;
}

std::string PjrtPlugin::NameOf(DeviceId device) {
  MutexLock lock(mutex_);
  const auto found = names_.find(device);
  return found == names_.end() ? kUnknownDevice : found->second;
}

PjrtPlugin::Location PjrtPlugin::QueryLocation(PjrtHandle client, pjrt::Memory* memory) {
  Location location;
  PjrtQuery<pjrt::MemoryKindArgs> kind;
  kind.args.memory = memory;
  if (Query(Slot::kMemoryKind, &kind)) location.space = Text(kind.args.kind, kind.args.kind_size);
  PjrtQuery<pjrt::MemoryDevicesArgs> devices;
  devices.args.memory = memory;
  bool is_default = false;
  if (Query(Slot::kMemoryAddressableByDevices, &devices) && devices.args.num_devices > 0) {
    pjrt::Device* const device = devices.args.devices[0];
    location.attributes.device = DeviceOf(client, device);
    PjrtQuery<pjrt::DeviceDefaultMemoryArgs> of_device;
    of_device.args.device = device;
    is_default = Query(Slot::kDeviceDefaultMemory, &of_device) && of_device.args.memory == memory;
  } else {
    location.attributes.device = DeviceOf(client, nullptr);
  }
  // The default memory of a device counts as device memory whatever its name is: on a CPU the name can contain "host".
  if (!is_default && location.space.find("host") != std::string::npos)
    location.attributes.kind = MemoryKind::kPinnedHost;
  return location;
}

PjrtPlugin::Location PjrtPlugin::LocationOf(PjrtHandle client, pjrt::Device* device, pjrt::Memory* memory) {
  if (memory == nullptr) return {{DeviceOf(client, device), MemoryKind::kDevice, {}}, ""};
  {
    MutexLock lock(mutex_);
    const auto found = locations_.find(memory);
    if (found != locations_.end()) return found->second.location;
  }
  Location location = QueryLocation(client, memory);
  MutexLock lock(mutex_);
  locations_[memory] = {client, location};
  return location;
}

size_t PjrtPlugin::SizeOf(pjrt::Buffer* buffer) const {
  PjrtQuery<pjrt::BufferOnDeviceSizeArgs, kSmall> query;
  query.args.buffer = buffer;
  return Query(Slot::kBufferOnDeviceSize, &query) ? query.args.size : 0;
}

bool PjrtPlugin::IsDeleted(pjrt::Buffer* buffer) const {
  PjrtQuery<pjrt::BufferIsDeletedArgs, kSmall> query;
  query.args.buffer = buffer;
  return Query(Slot::kBufferIsDeleted, &query) && query.args.is_deleted;
}

PjrtMemory PjrtPlugin::Describe(PjrtHandle client, pjrt::Buffer* buffer, pjrt::Device* device, pjrt::Memory* memory) {
  if (memory != nullptr) device = nullptr;
  PjrtQuery<pjrt::BufferMemoryArgs> where;
  where.args.buffer = buffer;
  if (Query(Slot::kBufferMemory, &where) && where.args.memory != nullptr) memory = where.args.memory;
  const Location location = LocationOf(client, device, memory);
  PjrtMemory described;
  described.bytes = SizeOf(buffer);
  described.attributes = location.attributes;
  described.space = location.space;
  // A memory space can belong to several devices; the argument of the call says which device it is.
  if (device != nullptr) described.attributes.device = DeviceOf(client, device);
  PjrtQuery<pjrt::BufferElementTypeArgs> type;
  type.args.buffer = buffer;
  PjrtQuery<pjrt::BufferDimensionsArgs> dimensions;
  dimensions.args.buffer = buffer;
  if (Query(Slot::kBufferElementType, &type) && Query(Slot::kBufferDimensions, &dimensions)) {
    described.shape = PjrtShapeText(type.args.type, dimensions.args.dims, dimensions.args.num_dims);
  }
  return described;
}

std::shared_ptr<PjrtProgram> PjrtPlugin::DescribeProgram(PjrtHandle client, pjrt::LoadedExecutable* executable) {
  auto program = std::make_shared<PjrtProgram>();
  program->client = client;
  PjrtQuery<pjrt::ExecutableDevicesArgs> devices;
  devices.args.executable = executable;
  if (Query(Slot::kLoadedExecutableAddressableDevices, &devices)) {
    for (size_t i = 0; i < devices.args.num_devices; ++i) {
      program->devices.push_back(DeviceOf(client, devices.args.devices[i]));
    }
  }
  // The caller of this function must destroy the executable that it returns.
  PjrtQuery<pjrt::GetExecutableArgs> get;
  get.args.loaded_executable = executable;
  if (!Query(Slot::kLoadedExecutableGetExecutable, &get)) return program;
  PjrtQuery<pjrt::ExecutableNameArgs> name;
  name.args.executable = get.args.executable;
  if (Query(Slot::kExecutableName, &name)) program->name = Text(name.args.name, name.args.name_size);
  PjrtQuery<pjrt::ExecutableNumOutputsArgs> outputs;
  outputs.args.executable = get.args.executable;
  if (Query(Slot::kExecutableNumOutputs, &outputs)) program->num_outputs = outputs.args.num_outputs;
  PjrtQuery<pjrt::ExecutableSizeArgs> size;
  size.args.executable = get.args.executable;
  if (Query(Slot::kExecutableSizeOfGeneratedCode, &size)) program->code_bytes = Reported(size.args.size);
  PjrtQuery<pjrt::ExecutableMemoryStatsArgs> stats;
  stats.args.executable = get.args.executable;
  if (Query(Slot::kExecutableMemoryStats, &stats)) {
    program->temp_bytes = Reported(stats.args.temp);
    program->peak_bytes = Reported(stats.args.peak_memory);
  }
  PjrtQuery<pjrt::ExecutableDestroyArgs> destroy;
  destroy.args.executable = get.args.executable;
  Query(Slot::kExecutableDestroy, &destroy);
  return program;
}

}  // namespace hbmprof::internal
