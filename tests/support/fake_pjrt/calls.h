// Calls through a PJRT table, with the arguments that a program of that version would pass.
#ifndef HBMPROF_TESTS_SUPPORT_FAKE_PJRT_CALLS_H_
#define HBMPROF_TESTS_SUPPORT_FAKE_PJRT_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/pjrt/abi.h"
#include "tests/support/fake_pjrt/more_abi.h"

namespace hbmprof_test {

namespace abi = hbmprof::internal::pjrt;

constexpr int kU8 = 6;
constexpr int kF32 = 11;

// Functions that return int return 0 or the code of the call's error, which is destroyed.
class PjrtCalls {
 public:
  explicit PjrtCalls(const abi::Api* api) : api_(api) {}

  const abi::Api* api() const { return api_; }

  // Returns the function in the slot.
  void* Function(int slot) const {
    return *reinterpret_cast<void* const*>(reinterpret_cast<const char*>(api_) + abi::OffsetOf(slot));
  }
  template <typename Args>
  abi::Error* Raw(int slot, Args* args) const {
    return reinterpret_cast<abi::Error* (*)(Args*)>(Function(slot))(args);
  }
  // Calls with the size set, and destroys an error after reading its code.
  template <typename Args>
  int Call(int slot, Args* args) const {
    args->struct_size = sizeof(Args);
    abi::Error* const error = Raw(slot, args);
    if (error == nullptr) return 0;
    abi::ErrorGetCodeArgs code{sizeof(code), nullptr, error, 0};
    Raw(abi::kErrorGetCode, &code);
    abi::ErrorDestroyArgs destroy{sizeof(destroy), nullptr, error};
    reinterpret_cast<void (*)(abi::ErrorDestroyArgs*)>(Function(abi::kErrorDestroy))(&destroy);
    return code.code;
  }

  abi::Client* CreateClient() const {
    abi::ClientCreateArgs args{};
    Call(abi::kClientCreate, &args);
    return args.client;
  }
  int DestroyClient(abi::Client* client) const {
    abi::ClientDestroyArgs args{};
    args.client = client;
    return Call(abi::kClientDestroy, &args);
  }
  abi::Device* Device(abi::Client* client, size_t index) const {
    abi::ClientAddressableDevicesArgs args{};
    args.client = client;
    Call(abi::kClientAddressableDevices, &args);
    return index < args.num_devices ? args.devices[index] : nullptr;
  }
  abi::Memory* MemoryOf(abi::Buffer* buffer) const {
    abi::BufferMemoryArgs args{};
    args.buffer = buffer;
    Call(abi::kBufferMemory, &args);
    return args.memory;
  }

  // An uninitialized buffer of bytes; null if that fails, with the code in `code`.
  abi::Buffer* Uninitialized(abi::Client* client, int64_t bytes, abi::Device* device = nullptr,
                             int* code = nullptr) const {
    abi::CreateUninitializedArgs args{};
    args.client = client;
    args.dims = &bytes;
    args.num_dims = 1;
    args.type = kU8;
    args.device = device;
    const int failed = Call(abi::kCreateUninitialized, &args);
    if (code != nullptr) *code = failed;
    return failed == 0 ? args.buffer : nullptr;
  }
  // From host memory, in `memory` or on `device`.
  abi::Buffer* FromHost(abi::Client* client, std::vector<int64_t> dims, abi::Device* device = nullptr,
                        abi::Memory* memory = nullptr) const {
    abi::BufferFromHostBufferArgs args{};
    args.client = client;
    args.type = kF32;
    args.dims = dims.data();
    args.num_dims = dims.size();
    args.device = device;
    args.memory = memory;
    if (Call(abi::kBufferFromHostBuffer, &args) != 0) return nullptr;
    DestroyEvent(args.done_with_host_buffer);
    return args.buffer;
  }
  // A view of `bytes` bytes at `address` on `device`; null if that fails.
  abi::Buffer* View(abi::Client* client, int64_t bytes, abi::Device* device, void* address = nullptr) const {
    abi::CreateViewArgs args{};
    args.client = client;
    args.device_pointer = address;
    args.dims = &bytes;
    args.num_dims = 1;
    args.type = kU8;
    args.device = device;
    return Call(abi::kCreateView, &args) == 0 ? args.buffer : nullptr;
  }
  // A buffer of `bytes` bytes that holds the error `code`; null if that fails.
  abi::Buffer* ErrorBuffer(abi::Client* client, int64_t bytes, abi::Memory* memory, int code) const {
    abi::CreateErrorArgs args{};
    args.client = client;
    args.code = code;
    args.dims = &bytes;
    args.num_dims = 1;
    args.type = kU8;
    args.memory = memory;
    return Call(abi::kCreateError, &args) == 0 ? args.buffer : nullptr;
  }
  void DestroyEvent(abi::Event* event) const {
    abi::EventArgs args{};
    args.event = event;
    if (event != nullptr) Call(abi::kEventDestroy, &args);
  }
  // Destroy, Delete, the reference counts.
  int OnBuffer(int slot, abi::Buffer* buffer) const {
    abi::BufferArgs args{};
    args.buffer = buffer;
    return Call(slot, &args);
  }
  int Destroy(abi::Buffer* buffer) const { return OnBuffer(abi::kBufferDestroy, buffer); }
  abi::Buffer* Bitcast(abi::Buffer* source, std::vector<int64_t> dims) const {
    abi::BufferBitcastArgs args{};
    args.buffer = source;
    args.type = kF32;
    args.dims = dims.data();
    args.num_dims = dims.size();
    return Call(abi::kBufferBitcast, &args) == 0 ? args.result : nullptr;
  }

  abi::LoadedExecutable* Compile(abi::Client* client, const std::string& text, const std::string& devices = "") const {
    abi::Program program{};
    program.struct_size = sizeof(program);
    program.code = text.data();
    program.code_size = text.size();
    program.format = "fake";
    program.format_size = 4;
    abi::ClientCompileArgs args{};
    args.client = client;
    args.program = &program;
    args.compile_options = devices.data();
    args.compile_options_size = devices.size();
    return Call(abi::kClientCompile, &args) == 0 ? args.executable : nullptr;
  }
  int DestroyExecutable(abi::LoadedExecutable* executable) const {
    abi::LoadedExecutableArgs args{};
    args.executable = executable;
    return Call(abi::kLoadedExecutableDestroy, &args);
  }
  // Executes on one device for each list of arguments. `outputs` is resized for the results.
  struct Run {
    std::vector<std::vector<abi::Buffer*>> arguments = {{}};
    std::vector<int64_t> keep = {};  // arguments that may not be donated
    size_t num_outputs = 1;
    abi::Device* device = nullptr;
    const char* location = nullptr;
    abi::Event** done = nullptr;  // not null: the events of the devices are stored here
  };
  int Execute(abi::LoadedExecutable* executable, const Run& run,
              std::vector<std::vector<abi::Buffer*>>* outputs) const {
    abi::ExecuteOptions options{};
    options.struct_size = sizeof(options);
    options.non_donatable_inputs = run.keep.data();
    options.num_non_donatable_inputs = run.keep.size();
    options.call_location = run.location;
    outputs->assign(run.arguments.size(), std::vector<abi::Buffer*>(run.num_outputs, nullptr));
    std::vector<abi::Buffer* const*> argument_lists;
    std::vector<abi::Buffer**> output_lists;
    for (const auto& list : run.arguments) argument_lists.push_back(list.data());
    for (auto& list : *outputs) output_lists.push_back(list.data());
    abi::ExecuteArgs args{};
    args.executable = executable;
    args.options = &options;
    args.argument_lists = argument_lists.data();
    args.num_devices = run.arguments.size();
    args.num_args = run.arguments[0].size();
    args.output_lists = output_lists.data();
    args.execute_device = run.device;
    args.device_complete_events = run.done;
    return Call(abi::kLoadedExecutableExecute, &args);
  }
  // One output on one device; null if it failed.
  abi::Buffer* Execute1(abi::LoadedExecutable* executable, std::vector<abi::Buffer*> arguments) const {
    Run run;
    run.arguments = {std::move(arguments)};
    std::vector<std::vector<abi::Buffer*>> outputs;
    return Execute(executable, run, &outputs) == 0 ? outputs[0][0] : nullptr;
  }

 private:
  const abi::Api* const api_;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_FAKE_PJRT_CALLS_H_
