// The hooks: each translates a call of the plugin's table into calls of PjrtRecords.
//
// A call that creates something is recorded after it has succeeded. A call that ends something is recorded before it is
// made. The program's arguments and results are never changed.
#include "src/backends/pjrt/hooks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "hbmprof/out_of_memory.h"
#include "hbmprof/pprof.h"
#include "hbmprof/tag.h"
#include "src/base/background_thread.h"
#include "src/base/message.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

using namespace pjrt;  // NOLINT: most names in this file are from there

// Whether the struct of the caller has this field. It may not have the field, because the caller may have been built
// with an older header.
#define HBMPROF_HAS_FIELD(args, field) \
  ((args)->struct_size >=              \
   static_cast<size_t>(reinterpret_cast<const char*>(&(args)->field + 1) - reinterpret_cast<const char*>(args)))

size_t ZeroBytes() { return 0; }

// Calls `record`, which records `bytes()` bytes. If the host has no memory for the record, the bytes are counted as
// dropped.
template <typename Record, typename Bytes = decltype(&ZeroBytes)>
void RecordOrDrop(TrackedPlugin& tracked, const Record& record, const Bytes& bytes = &ZeroBytes) {
  if (!TryRun(record)) tracked.profiler.RecordDropped(bytes());
}

// The name of the function in `slot`, which has a hook, in the header of PJRT's C API.
const char* CallName(int slot) {
  const PjrtHook* hook = kPjrtHooks;
  while (hook->slot != slot) ++hook;
  return hook->name;
}

// The memory that a call requests. A member without a value is one that the arguments of the call do not contain.
struct Request {
  std::optional<DeviceId> device;
  MemorySpace space = MemorySpace::kDevice;
  std::optional<size_t> bytes;
};
Request NothingKnown() { return {}; }

Request RequestAt(const PjrtPlugin::Location& location) {
  return {location.attributes.device, SpaceOf(location.attributes.kind), std::nullopt};
}

// Reports that the call of `slot` has failed with `error`, because there was no memory.
void ReportFailure(TrackedPlugin& tracked, int slot, const Error* error, const Request& request) {
  // If the device is not known, the name is empty, and the report is about the device with the most bytes in use.
  const std::string device = request.device ? tracked.plugin.NameOf(*request.device) : std::string();
  FailedAllocation failure = {CallName(slot), request.bytes, device, request.space};
  if (const auto bytes = PjrtRequestedBytes(tracked.plugin.MessageOf(error))) failure.bytes = bytes;
  ReportOutOfMemory(failure, tracked.profiler);
}

// Returns `error`, the result of a call of `slot`. Reports the failure if the code of `error` is RESOURCE_EXHAUSTED.
// `requested()` returns the Request of the call; it is called only in that case.
template <typename Requested = decltype(&NothingKnown)>
Error* Finish(TrackedPlugin& tracked, int slot, Error* error, const Requested& requested = &NothingKnown) {
  if (error != nullptr && tracked.plugin.CodeOf(error) == kErrorResourceExhausted && tracked.profiler.enabled() &&
      !TryRun([&] { ReportFailure(tracked, slot, error, requested()); })) {
    PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
  }
  return error;
}

// The two ways to track a call. Both make the call once, outside of all code that can fail, and return its result.

template <typename Args, typename Record, typename Bytes = decltype(&ZeroBytes),
          typename Requested = decltype(&NothingKnown)>
Error* CallThenRecord(TrackedPlugin& tracked, int slot, Args* args, const Record& record,
                      const Bytes& bytes = &ZeroBytes, const Requested& requested = &NothingKnown) {
  Error* const error = tracked.plugin.Call(slot, args);
  if (error == nullptr && tracked.profiler.enabled()) RecordOrDrop(tracked, record, bytes);
  return Finish(tracked, slot, error, requested);
}

// While recording is off, nothing is recorded, but known handles are followed. There are two reasons: the plugin can
// reuse the handle of an object that has ended, and the record of memory must not end while another handle holds it.

// Makes the call. If it succeeds, calls follow(), also while recording is off.
template <typename Args, typename Follow>
Error* CallThenFollow(TrackedPlugin& tracked, int slot, Args* args, const Follow& follow) {
  Error* const error = tracked.plugin.Call(slot, args);
  if (error == nullptr) RecordOrDrop(tracked, follow);
  return Finish(tracked, slot, error);
}

// Calls remove(), which returns the number of records that have ended, also while recording is off.
template <typename Args, typename Remove>
Error* RemoveThenCall(TrackedPlugin& tracked, int slot, Args* args, const Remove& remove) {
  int ended = 0;
  RecordOrDrop(tracked, [&] { ended = remove(); });
  Error* const error = tracked.plugin.Call(slot, args);
  if (error != nullptr && ended > 0) tracked.profiler.RecordRefusedFree();
  return Finish(tracked, slot, error);
}

// Prints nothing while recording is off, because unknown handles are then normal.
void WarnOnceOfForeign(const TrackedPlugin& tracked, const char* what) {
  static std::atomic<bool> said{false};
  if (!tracked.profiler.enabled() || said.exchange(true)) return;
  PrintMessage(
      "hbmprof: a PJRT ", what,
      " was destroyed, but its creation was not recorded, or it was destroyed before. The call was passed on and is "
      "counted in foreign_frees (this message is printed once)");
}

// Clients.

Error* CreateClient(TrackedPlugin& tracked, const Caller&, ClientCreateArgs* args) {
  return CallThenRecord(tracked, kClientCreate, args, [&] { tracked.plugin.ClientCreated(args->client); });
}

// Returns the names of the functions that contain the addresses; none if no thread can be started. It takes
// more stack to find names than the program's thread may have.
// Throws std::bad_alloc.
std::vector<Symbolizer::Name> NamesOf(const Profiler& profiler, const std::vector<uint64_t>& addresses) {
  std::vector<Symbolizer::Name> names;
  // Not in that thread: a probe may load a library, and this thread may hold the dynamic linker's lock.
  const std::vector<Snapshot::Module> modules = profiler.TakeSnapshot().modules;
  bool is_found = false;
  const auto find = [&] { is_found = TryRun([&] { names = ElfSymbolizer().Symbolize(modules, addresses); }); };
  if (RunInBackgroundThread(find) && !is_found) throw std::bad_alloc();
  return names;
}

void ReportLeaks(TrackedPlugin& tracked, const std::vector<PjrtRecords::Leak>& rows) {
  if (rows.empty()) return;
  constexpr size_t kMaxRows = 10;
  const size_t listed = std::min(rows.size(), kMaxRows);
  std::vector<uint64_t> calls;
  calls.reserve(listed);
  for (size_t i = 0; i < listed; ++i) calls.push_back(rows[i].made_by - 1);
  const std::vector<Symbolizer::Name> names = NamesOf(tracked.profiler, calls);
  int64_t count = 0;
  int64_t bytes = 0;
  for (const PjrtRecords::Leak& row : rows) {
    count += row.count;
    bytes += row.count * row.bytes;
  }
  std::string text = "hbmprof: a PJRT client was destroyed before " + std::to_string(count) +
                     " of its buffers and executables (" + std::to_string(bytes) +
                     " B); they stay in the profile as leaks:";
  for (size_t i = 0; i < listed; ++i) {
    const PjrtRecords::Leak& row = rows[i];
    const bool has_name = i < names.size() && !names[i].name.empty();
    text += "\nhbmprof:   " + std::to_string(row.count) + " x " + std::to_string(row.bytes) + " B, kind " +
            std::string(MemoryKindName(row.attributes.kind)) + ", on " + tracked.plugin.NameOf(row.attributes.device) +
            ", made in " + std::string(has_name ? names[i].name : "[unknown]");
  }
  if (rows.size() > listed) text += "\nhbmprof:   and " + std::to_string(rows.size() - listed) + " more rows";
  PrintMessage(text);
}

Error* DestroyClient(TrackedPlugin& tracked, const Caller&, ClientDestroyArgs* args) {
  // The client's devices end with it, so their probes must no longer run, also while recording is off.
  tracked.plugin.ClientDestroyed(args->client);
  return RemoveThenCall(tracked, kClientDestroy, args, [&] {
    if (!TryRun([&] { ReportLeaks(tracked, tracked.records.ClientDestroyed(args->client)); })) {
      PrintMessage("hbmprof: the host has no memory to list the buffers that a destroyed PJRT client did not free");
    }
    return 0;
  });
}

Error* MapHostMemory(TrackedPlugin& tracked, const Caller& caller, DmaMapArgs* args) {
  const auto device = [&] {
    const std::vector<Device*> devices = tracked.plugin.AddressableDevices(args->client);
    return tracked.plugin.DeviceOf(args->client, devices.empty() ? nullptr : devices.front());
  };
  const auto record = [&] {
    PjrtMemory memory;
    memory.bytes = args->size;
    memory.attributes.device = device();
    memory.attributes.kind = MemoryKind::kPinnedHost;
    tracked.records.HostMapped(caller, args->data, memory);
  };
  return CallThenRecord(
      tracked, kDmaMap, args, record, [&] { return args->size; },
      [&] {
        return Request{device(), MemorySpace::kPinnedHost, args->size};
      });
}

Error* UnmapHostMemory(TrackedPlugin& tracked, const Caller&, DmaUnmapArgs* args) {
  return RemoveThenCall(tracked, kDmaUnmap, args, [&] { return tracked.records.HostUnmapped(args->data); });
}

// Executables.

template <typename Args>
Error* Load(TrackedPlugin& tracked, const Caller& caller, int slot, Args* args, LoadedExecutable* const* loaded) {
  return CallThenRecord(tracked, slot, args, [&] {
    tracked.records.Loaded(caller, *loaded, tracked.plugin.DescribeProgram(args->client, *loaded));
  });
}

Error* Compile(TrackedPlugin& tracked, const Caller& caller, ClientCompileArgs* args) {
  return Load(tracked, caller, kClientCompile, args, &args->executable);
}
Error* LoadExecutable(TrackedPlugin& tracked, const Caller& caller, ClientLoadArgs* args) {
  return Load(tracked, caller, kClientLoad, args, &args->loaded_executable);
}
Error* DeserializeAndLoad(TrackedPlugin& tracked, const Caller& caller, DeserializeAndLoadArgs* args) {
  return Load(tracked, caller, kDeserializeAndLoad, args, &args->loaded_executable);
}

Error* DeleteExecutable(TrackedPlugin& tracked, const Caller&, LoadedExecutableArgs* args) {
  return RemoveThenCall(tracked, kLoadedExecutableDelete, args,
                        [&] { return tracked.records.ExecutableDeleted(args->executable); });
}

Error* DestroyExecutable(TrackedPlugin& tracked, const Caller&, LoadedExecutableArgs* args) {
  return RemoveThenCall(tracked, kLoadedExecutableDestroy, args, [&] {
    bool known = false;
    const int ended = tracked.records.ExecutableDestroyed(args->executable, &known);
    if (!known) WarnOnceOfForeign(tracked, "executable");
    return ended;
  });
}

// Removes the records of donated arguments: those that the plugin reports as deleted after the execution.
void RemoveDonated(TrackedPlugin& tracked, const ExecuteArgs& args) {
  const ExecuteOptions* options = args.options;
  const auto may_be_donated = [&](size_t argument) {
    if (options == nullptr || !HBMPROF_HAS_FIELD(options, num_non_donatable_inputs)) return true;
    const int64_t* const end = options->non_donatable_inputs + options->num_non_donatable_inputs;
    return std::find(options->non_donatable_inputs, end, static_cast<int64_t>(argument)) == end;
  };
  PjrtRecords::Handles arguments;
  for (size_t argument = 0; argument < args.num_args; ++argument) {
    if (!may_be_donated(argument)) continue;
    for (size_t device = 0; device < args.num_devices; ++device) {
      arguments.push_back(args.argument_lists[device][argument]);
    }
  }
  tracked.records.KeepHolders(arguments);
  for (const PjrtHandle argument : arguments) {
    auto* const buffer = static_cast<Buffer*>(const_cast<void*>(argument));
    if (tracked.plugin.IsDeleted(buffer)) tracked.records.Deleted(buffer);
  }
}

// Returns the description of the executed program; queries the plugin for it the first time.
std::shared_ptr<const PjrtProgram> ProgramOf(TrackedPlugin& tracked, const Caller& caller, const ExecuteArgs& args) {
  std::shared_ptr<const PjrtProgram> program = tracked.records.FindProgram(args.executable);
  if (program != nullptr) return program;
  // The program was loaded before the plugin was wrapped: its outputs are recorded, its code is not.
  const std::shared_ptr<PjrtProgram> described = tracked.plugin.DescribeProgram(nullptr, args.executable);
  described->devices.clear();
  tracked.records.Loaded(caller, args.executable, described);
  return described;
}

PjrtMemory DescribeOutput(TrackedPlugin& tracked, const ExecuteArgs& args, const PjrtProgram& program,
                          PjrtHandle client, size_t device, Buffer* buffer) {
  PjrtMemory memory = tracked.plugin.Describe(client, buffer, args.execute_device, nullptr);
  if (args.execute_device == nullptr && device < program.devices.size()) {
    memory.attributes.device = program.devices[device];
  }
  return memory;
}

// Returns the caller's description of the call; empty if there is none.
std::string_view CallLocationOf(const ExecuteArgs& args) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  const ExecuteOptions* const options = args.options;
  if (options == nullptr || !HBMPROF_HAS_FIELD(options, call_location) || options->call_location == nullptr) return {};
  return {options->call_location, strnlen(options->call_location, kMaxBytes)};
}

// If an execution runs on several devices, its arguments do not show which of them has no memory.
Request RequestOf(TrackedPlugin& tracked, const ExecuteArgs& args) {
  const std::shared_ptr<const PjrtProgram> program = tracked.records.FindProgram(args.executable);
  Request request;
  if (args.execute_device != nullptr) {
    request.device = tracked.plugin.DeviceOf(program == nullptr ? nullptr : program->client, args.execute_device);
  } else if (program != nullptr && program->devices.size() == 1) {
    request.device = program->devices.front();
  }
  return request;
}

// Reports `failure`, with which an execution had failed when its call returned, and destroys it. If an argument has
// failed, its own failure was reported before.
void ReportExecution(TrackedPlugin& tracked, const ExecuteArgs& args, Error* failure) {
  bool is_passed_on = false;
  for (size_t i = 0; i < args.num_devices * args.num_args; ++i) {
    is_passed_on |= tracked.records.IsFailed(args.argument_lists[i / args.num_args][i % args.num_args]);
  }
  tracked.known_failure = std::hash<std::string_view>()(tracked.plugin.MessageOf(failure));
  if (!is_passed_on) Finish(tracked, kLoadedExecutableExecute, failure, [&] { return RequestOf(tracked, args); });
  tracked.plugin.Discard(failure);
}

void RecordOutputs(TrackedPlugin& tracked, const Caller& caller, const ExecuteArgs& args) {
  if (args.output_lists == nullptr) return;
  const std::shared_ptr<const PjrtProgram> program = ProgramOf(tracked, caller, args);
  if (program->num_outputs == 0) return;
  const PjrtHandle client = program->client;
  const ScopedTag name(program->name.empty() ? "" : "executable", program->name);
  const std::string_view location = CallLocationOf(args);
  const ScopedTag tag(location.empty() ? "" : "call_location", location.substr(0, location.find('\n')));

  // The outputs of an executable have the same locations and shapes in each execution, except if the call names a
  // device.
  const bool is_usual = args.execute_device == nullptr;
  const PjrtProgram::Outputs* outputs = is_usual ? program->outputs.load(std::memory_order_acquire) : nullptr;
  if (outputs != nullptr && outputs->size() != args.num_devices) outputs = nullptr;
  auto described = outputs == nullptr ? std::make_unique<PjrtProgram::Outputs>(args.num_devices) : nullptr;
  for (size_t device = 0; device < args.num_devices; ++device) {
    Event* const* const done = args.device_complete_events;
    Error* const failure = done == nullptr ? nullptr : tracked.plugin.FailureOf(done[device]);
    if (failure != nullptr) {
      described = nullptr;
      ReportExecution(tracked, args, failure);
    }
    for (size_t i = 0; i < program->num_outputs; ++i) {
      Buffer* const buffer = args.output_lists[device][i];
      const size_t bytes = tracked.plugin.SizeOf(buffer);
      const auto record = [&] {
        if (failure != nullptr) {  // the handle has no memory
          tracked.records.CreatedAlias(caller, client, buffer, PjrtMemory());
          tracked.records.Deleted(buffer);
          return;
        }
        if (outputs != nullptr && bytes == (*outputs)[device][i].bytes) {
          tracked.records.Created(caller, client, buffer, (*outputs)[device][i]);
          return;
        }
        PjrtMemory memory = DescribeOutput(tracked, args, *program, client, device, buffer);
        tracked.records.Created(caller, client, buffer, memory);
        if (described != nullptr) (*described)[device].push_back(std::move(memory));
      };
      if (TryRun(record)) continue;
      tracked.profiler.RecordDropped(bytes);
      described = nullptr;
    }
  }
  const PjrtProgram::Outputs* none = nullptr;
  if (is_usual && described != nullptr &&
      program->outputs.compare_exchange_strong(none, described.get(), std::memory_order_acq_rel)) {
    static_cast<void>(described.release());  // `program` owns it now
  }
}

Error* Execute(TrackedPlugin& tracked, const Caller& caller, ExecuteArgs* args) {
  Error* const error = tracked.plugin.Call(kLoadedExecutableExecute, args);
  if (tracked.profiler.enabled()) {
    // The records of donated arguments are removed first. Otherwise memory that an output took over from an argument
    // would count twice. A failed execution can also have taken arguments over.
    RecordOrDrop(tracked, [&] { RemoveDonated(tracked, *args); });
    if (error == nullptr) RecordOrDrop(tracked, [&] { RecordOutputs(tracked, caller, *args); });
  }
  return Finish(tracked, kLoadedExecutableExecute, error, [&] { return RequestOf(tracked, *args); });
}

// Buffers.

// Tracks a call that creates the buffer `*made`, in `memory` if that is not null, else on `device`.
template <typename Args>
Error* Make(TrackedPlugin& tracked, const Caller& caller, int slot, Args* args, Client* client, Buffer* const* made,
            Device* device, Memory* memory) {
  return CallThenRecord(
      tracked, slot, args,
      [&] { tracked.records.Created(caller, client, *made, tracked.plugin.Describe(client, *made, device, memory)); },
      [&] { return tracked.plugin.SizeOf(*made); },
      [&] {
        if (device == nullptr && memory == nullptr) return NothingKnown();
        return RequestAt(tracked.plugin.LocationOf(client, device, memory));
      });
}

// Tracks a call that creates the buffer `*made` with memory that was recorded before. follow() gives that memory to the
// buffer. If it returns false, because the memory is unknown, the memory is recorded, unless recording is off.
template <typename Args, typename Follow>
Error* FollowOrMake(TrackedPlugin& tracked, const Caller& caller, int slot, Args* args, Buffer* const* made,
                    const Follow& follow) {
  Error* const error = tracked.plugin.Call(slot, args);
  const auto record = [&] {
    if (follow() || !tracked.profiler.enabled()) return;
    tracked.records.Created(caller, nullptr, *made, tracked.plugin.Describe(nullptr, *made, nullptr, nullptr));
  };
  if (error == nullptr) RecordOrDrop(tracked, record, [&] { return tracked.plugin.SizeOf(*made); });
  return Finish(tracked, slot, error);
}

// Tracks a call that creates a buffer without memory of its own.
template <typename Args>
Error* MakeView(TrackedPlugin& tracked, const Caller& caller, int slot, Args* args, Device* device, Memory* memory) {
  return CallThenRecord(tracked, slot, args, [&] {
    tracked.records.CreatedAlias(caller, args->client, args->buffer,
                                 tracked.plugin.Describe(args->client, args->buffer, device, memory));
  });
}

// Tracks a call that copies `args->buffer`.
template <typename Args>
Error* Copy(TrackedPlugin& tracked, const Caller& caller, int slot, Args* args, Device* device, Memory* memory) {
  auto* const client = const_cast<void*>(tracked.records.ClientOf(args->buffer));
  return Make(tracked, caller, slot, args, static_cast<Client*>(client), &args->copy, device, memory);
}

Error* FromHostBuffer(TrackedPlugin& tracked, const Caller& caller, BufferFromHostBufferArgs* args) {
  return Make(tracked, caller, kBufferFromHostBuffer, args, args->client, &args->buffer, args->device, args->memory);
}
Error* Uninitialized(TrackedPlugin& tracked, const Caller& caller, CreateUninitializedArgs* args) {
  return Make(tracked, caller, kCreateUninitialized, args, args->client, &args->buffer, args->device, args->memory);
}
Error* CopyToDevice(TrackedPlugin& tracked, const Caller& caller, BufferCopyToDeviceArgs* args) {
  return Copy(tracked, caller, kBufferCopyToDevice, args, args->device, nullptr);
}
Error* CopyToMemory(TrackedPlugin& tracked, const Caller& caller, BufferCopyToMemoryArgs* args) {
  return Copy(tracked, caller, kBufferCopyToMemory, args, nullptr, args->memory);
}
Error* View(TrackedPlugin& tracked, const Caller& caller, CreateViewArgs* args) {
  // The field `memory` exists since minor version 66.
  Memory* const memory = HBMPROF_HAS_FIELD(args, memory) ? args->memory : nullptr;
  return MakeView(tracked, caller, kCreateView, args, args->device, memory);
}
Error* ErrorBuffer(TrackedPlugin& tracked, const Caller& caller, CreateErrorArgs* args) {
  return MakeView(tracked, caller, kCreateError, args, nullptr, args->memory);
}
Error* AliasBuffer(TrackedPlugin& tracked, const Caller& caller, CreateAliasArgs* args) {
  return CallThenFollow(tracked, kCreateAlias, args, [&] {
    const PjrtMemory memory = tracked.profiler.enabled()
                                  ? tracked.plugin.Describe(args->client, args->buffer, nullptr, args->memory)
                                  : PjrtMemory();
    tracked.records.CreatedAlias(caller, args->client, args->buffer, memory);
    tracked.records.AwaitsFulfilment(args->callback, args->buffer);
  });
}
Error* FulfillAlias(TrackedPlugin& tracked, const Caller&, FulfillAliasArgs* args) {
  FulfillCallback* const callback = args->callback;
  return CallThenFollow(tracked, kFulfillAlias, args, [&] { tracked.records.Fulfilled(callback, args->buffer); });
}
Error* Bitcast(TrackedPlugin& tracked, const Caller& caller, BufferBitcastArgs* args) {
  return CallThenFollow(tracked, kBufferBitcast, args, [&] {
    const PjrtHandle client = tracked.records.ClientOf(args->buffer);
    const bool enabled = tracked.profiler.enabled();
    if (!enabled && !tracked.records.Holds(args->buffer)) return;
    tracked.records.CreatedAlias(
        caller, client, args->result,
        enabled ? tracked.plugin.Describe(client, args->result, nullptr, nullptr) : PjrtMemory(), args->buffer);
  });
}
Error* DonateWithControlDependency(TrackedPlugin& tracked, const Caller& caller,
                                   DonateWithControlDependencyArgs* args) {
  return FollowOrMake(tracked, caller, kDonateWithControlDependency, args, &args->result,
                      [&] { return tracked.records.Moved(args->buffer, args->result); });
}

Error* DeleteBuffer(TrackedPlugin& tracked, const Caller&, BufferArgs* args) {
  return RemoveThenCall(tracked, kBufferDelete, args, [&] { return tracked.records.Deleted(args->buffer); });
}
Error* DestroyBuffer(TrackedPlugin& tracked, const Caller&, BufferArgs* args) {
  return RemoveThenCall(tracked, kBufferDestroy, args, [&] {
    bool known = false;
    const int ended = tracked.records.Destroyed(args->buffer, &known);
    if (!known) WarnOnceOfForeign(tracked, "buffer");
    return ended;
  });
}
Error* IncreaseReferences(TrackedPlugin& tracked, const Caller&, BufferArgs* args) {
  return CallThenFollow(tracked, kBufferIncreaseReferences, args,
                        [&] { tracked.records.ReferenceAdded(args->buffer); });
}
Error* DecreaseReferences(TrackedPlugin& tracked, const Caller&, BufferArgs* args) {
  return CallThenFollow(tracked, kBufferDecreaseReferences, args,
                        [&] { tracked.records.ReferenceDropped(args->buffer); });
}

// Transfers, whose buffers are retrieved later.

Error* CreateTransfer(TrackedPlugin& tracked, const Caller& caller, CreateBuffersForTransferArgs* args) {
  const auto size_of = [&](size_t index) -> size_t {
    PjrtQuery<TransferManagerBufferSizeArgs> size;
    size.args.manager = args->manager;
    size.args.index = static_cast<int>(index);
    return tracked.plugin.Query(kTransferManagerBufferSize, &size) ? size.args.size : 0;
  };
  const auto record = [&] {
    PjrtQuery<TransferManagerDeviceArgs> where;
    where.args.manager = args->manager;
    Device* const device = tracked.plugin.Query(kTransferManagerDevice, &where) ? where.args.device : nullptr;
    const PjrtPlugin::Location location = tracked.plugin.LocationOf(args->client, device, args->memory);
    std::vector<PjrtMemory> pieces(args->num_shapes);
    for (size_t i = 0; i < args->num_shapes; ++i) {
      pieces[i].bytes = size_of(i);
      pieces[i].attributes = location.attributes;
      pieces[i].space = location.space;
      pieces[i].shape = PjrtShapeText(args->shapes[i].type, args->shapes[i].dims, args->shapes[i].num_dims);
    }
    tracked.records.TransferCreated(caller, args->client, args->manager, pieces);
  };
  const auto bytes = [&] {
    size_t sum = 0;
    for (size_t i = 0; i < args->num_shapes; ++i) sum += size_of(i);
    return sum;
  };
  return CallThenRecord(tracked, kCreateBuffersForTransfer, args, record, bytes, [&] {
    if (args->memory == nullptr) return NothingKnown();
    return RequestAt(tracked.plugin.LocationOf(args->client, nullptr, args->memory));
  });
}
Error* RetrieveFromTransfer(TrackedPlugin& tracked, const Caller& caller, TransferManagerRetrieveArgs* args) {
  return FollowOrMake(tracked, caller, kTransferManagerRetrieve, args, &args->buffer,
                      [&] { return tracked.records.TransferRetrieved(args->manager, args->index, args->buffer); });
}
Error* DestroyTransfer(TrackedPlugin& tracked, const Caller&, TransferManagerDestroyArgs* args) {
  return RemoveThenCall(tracked, kTransferManagerDestroy, args,
                        [&] { return tracked.records.TransferDestroyed(args->manager); });
}

// An execution can report exhausted memory through its event, later than its call.

template <int kSlot>
Error* AskEvent(TrackedPlugin& tracked, const Caller&, EventArgs* args) {
  Error* const error = tracked.plugin.Call(kSlot, args);
  if (error == nullptr) return nullptr;
  if (std::hash<std::string_view>()(tracked.plugin.MessageOf(error)) == tracked.known_failure) return error;
  const ScopedTag tag("failure", kLateFailure);
  return Finish(tracked, kSlot, error);
}

template <typename Args, Error* (*kRun)(TrackedPlugin&, const Caller&, Args*)>
Error* Run(TrackedPlugin& tracked, const Caller& caller, void* args) {
  return kRun(tracked, caller, static_cast<Args*>(args));
}

}  // namespace

constexpr PjrtHook kPjrtHooks[kPjrtHookCount] = {
    {kEventError, &Run<EventArgs, &AskEvent<kEventError>>, "PJRT_Event_Error"},
    {kEventAwait, &Run<EventArgs, &AskEvent<kEventAwait>>, "PJRT_Event_Await"},
    {kClientCreate, &Run<ClientCreateArgs, &CreateClient>, "PJRT_Client_Create"},
    {kClientDestroy, &Run<ClientDestroyArgs, &DestroyClient>, "PJRT_Client_Destroy"},
    {kClientCompile, &Run<ClientCompileArgs, &Compile>, "PJRT_Client_Compile"},
    {kClientLoad, &Run<ClientLoadArgs, &LoadExecutable>, "PJRT_Client_Load"},
    {kDeserializeAndLoad, &Run<DeserializeAndLoadArgs, &DeserializeAndLoad>, "PJRT_Executable_DeserializeAndLoad"},
    {kLoadedExecutableDelete, &Run<LoadedExecutableArgs, &DeleteExecutable>, "PJRT_LoadedExecutable_Delete"},
    {kLoadedExecutableDestroy, &Run<LoadedExecutableArgs, &DestroyExecutable>, "PJRT_LoadedExecutable_Destroy"},
    {kLoadedExecutableExecute, &Run<ExecuteArgs, &Execute>, "PJRT_LoadedExecutable_Execute"},
    {kBufferFromHostBuffer, &Run<BufferFromHostBufferArgs, &FromHostBuffer>, "PJRT_Client_BufferFromHostBuffer"},
    {kCreateUninitialized, &Run<CreateUninitializedArgs, &Uninitialized>, "PJRT_Client_CreateUninitializedBuffer"},
    {kBufferCopyToDevice, &Run<BufferCopyToDeviceArgs, &CopyToDevice>, "PJRT_Buffer_CopyToDevice"},
    {kBufferCopyToMemory, &Run<BufferCopyToMemoryArgs, &CopyToMemory>, "PJRT_Buffer_CopyToMemory"},
    {kCreateView, &Run<CreateViewArgs, &View>, "PJRT_Client_CreateViewOfDeviceBuffer"},
    {kCreateError, &Run<CreateErrorArgs, &ErrorBuffer>, "PJRT_Client_CreateErrorBuffer"},
    {kCreateAlias, &Run<CreateAliasArgs, &AliasBuffer>, "PJRT_Client_CreateAliasBuffer"},
    {kFulfillAlias, &Run<FulfillAliasArgs, &FulfillAlias>, "PJRT_Client_FulfillAliasBuffer"},
    {kBufferBitcast, &Run<BufferBitcastArgs, &Bitcast>, "PJRT_Buffer_Bitcast"},
    {kDonateWithControlDependency, &Run<DonateWithControlDependencyArgs, &DonateWithControlDependency>,
     "PJRT_Buffer_DonateWithControlDependency"},
    {kBufferDelete, &Run<BufferArgs, &DeleteBuffer>, "PJRT_Buffer_Delete"},
    {kBufferDestroy, &Run<BufferArgs, &DestroyBuffer>, "PJRT_Buffer_Destroy"},
    {kBufferIncreaseReferences, &Run<BufferArgs, &IncreaseReferences>, "PJRT_Buffer_IncreaseExternalReferenceCount"},
    {kBufferDecreaseReferences, &Run<BufferArgs, &DecreaseReferences>, "PJRT_Buffer_DecreaseExternalReferenceCount"},
    {kCreateBuffersForTransfer, &Run<CreateBuffersForTransferArgs, &CreateTransfer>,
     "PJRT_Client_CreateBuffersForAsyncHostToDevice"},
    {kTransferManagerRetrieve, &Run<TransferManagerRetrieveArgs, &RetrieveFromTransfer>,
     "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer"},
    {kTransferManagerDestroy, &Run<TransferManagerDestroyArgs, &DestroyTransfer>,
     "PJRT_AsyncHostToDeviceTransferManager_Destroy"},
    {kDmaMap, &Run<DmaMapArgs, &MapHostMemory>, "PJRT_Client_DmaMap"},
    {kDmaUnmap, &Run<DmaUnmapArgs, &UnmapHostMemory>, "PJRT_Client_DmaUnmap"},
};

static_assert(kPjrtHooks[kPjrtHookCount - 1].slot != 0, "kPjrtHookCount is not the number of entries");

}  // namespace hbmprof::internal
