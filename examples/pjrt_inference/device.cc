#include "examples/pjrt_inference/device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "hbmprof/pjrt.h"

namespace inference {
namespace {

// CompileOptionsProto { executable_build_options (3) { num_replicas (4): 1, num_partitions (5): 1 } }.
constexpr char kOneDevice[] = "\x1a\x04\x20\x01\x28\x01";

}  // namespace

void Fail(const std::string& message) {
  std::fprintf(stderr, "pjrt_inference: %s\n", message.c_str());
  std::exit(1);
}

Device::Device(const std::string& plugin_path, bool tracked) {
  void* const library = dlopen(plugin_path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) Fail(dlerror());
  const auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) Fail(plugin_path + " is not a PJRT plugin");
  // To record its device memory, a program needs only this call of Wrap.
  api_ = tracked ? hbmprof::pjrt::Wrap(get_api()) : get_api();

  PJRT_Plugin_Initialize_Args initialize{};
  initialize.struct_size = PJRT_Plugin_Initialize_Args_STRUCT_SIZE;
  Check(api_->PJRT_Plugin_Initialize(&initialize), "initializing the plugin");
  PJRT_Client_Create_Args create{};
  create.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE;
  Check(api_->PJRT_Client_Create(&create), "creating a client");
  client_ = create.client;
  PJRT_Client_AddressableDevices_Args devices{};
  devices.struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE;
  devices.client = client_;
  Check(api_->PJRT_Client_AddressableDevices(&devices), "listing the devices");
  if (devices.num_addressable_devices == 0) Fail("the plugin has no device");
  device_ = devices.addressable_devices[0];
}

Device::~Device() {
  PJRT_Client_Destroy_Args args{};
  args.struct_size = PJRT_Client_Destroy_Args_STRUCT_SIZE;
  args.client = client_;
  Check(api_->PJRT_Client_Destroy(&args), "destroying the client");
}

void Device::Check(PJRT_Error* error, const char* what) const {
  if (error == nullptr) return;
  PJRT_Error_Message_Args message{};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api_->PJRT_Error_Message(&message);
  Fail(std::string(what) + ": " + std::string(message.message, message.message_size));
}

void Device::Await(PJRT_Event* event, const char* what) const {
  PJRT_Event_Await_Args await{};
  await.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE;
  await.event = event;
  Check(api_->PJRT_Event_Await(&await), what);
  PJRT_Event_Destroy_Args destroy{};
  destroy.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE;
  destroy.event = event;
  Check(api_->PJRT_Event_Destroy(&destroy), what);
}

std::string Device::description() const {
  PJRT_Client_PlatformVersion_Args version{};
  version.struct_size = PJRT_Client_PlatformVersion_Args_STRUCT_SIZE;
  version.client = client_;
  Check(api_->PJRT_Client_PlatformVersion(&version), "asking for the version");
  PJRT_Client_PlatformName_Args name{};
  name.struct_size = PJRT_Client_PlatformName_Args_STRUCT_SIZE;
  name.client = client_;
  Check(api_->PJRT_Client_PlatformName(&name), "asking for the name");
  return std::string(name.platform_name, name.platform_name_size) + ", PJRT API " +
         std::to_string(api_->pjrt_api_version.major_version) + "." +
         std::to_string(api_->pjrt_api_version.minor_version);
}

PJRT_LoadedExecutable* Device::Compile(const std::string& stablehlo) {
  constexpr std::string_view kFormat = "mlir";
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = const_cast<char*>(stablehlo.data());
  program.code_size = stablehlo.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  PJRT_Client_Compile_Args args{};
  args.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE;
  args.client = client_;
  args.program = &program;
  args.compile_options = kOneDevice;
  args.compile_options_size = sizeof(kOneDevice) - 1;
  Check(api_->PJRT_Client_Compile(&args), "compiling");
  return args.executable;
}

PJRT_Buffer* Device::Upload(const std::vector<float>& values, const std::vector<int64_t>& dims) {
  PJRT_Client_BufferFromHostBuffer_Args args{};
  args.struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE;
  args.client = client_;
  args.data = values.data();
  args.type = PJRT_Buffer_Type_F32;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  args.device = device_;
  Check(api_->PJRT_Client_BufferFromHostBuffer(&args), "copying to the device");
  Await(args.done_with_host_buffer, "copying to the device");
  return args.buffer;
}

PJRT_Buffer* Device::Execute(PJRT_LoadedExecutable* executable, const std::vector<PJRT_Buffer*>& arguments) {
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  PJRT_Buffer* const* const argument_list = arguments.data();
  PJRT_Buffer* output = nullptr;
  PJRT_Buffer** const output_list = &output;
  PJRT_Event* complete = nullptr;
  PJRT_LoadedExecutable_Execute_Args args{};
  args.struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE;
  args.executable = executable;
  args.options = &options;
  args.argument_lists = &argument_list;
  args.num_devices = 1;
  args.num_args = arguments.size();
  args.output_lists = &output_list;
  args.device_complete_events = &complete;
  Check(api_->PJRT_LoadedExecutable_Execute(&args), "executing");
  Await(complete, "executing");
  return output;
}

std::vector<float> Device::Download(PJRT_Buffer* buffer) {
  PJRT_Buffer_ToHostBuffer_Args args{};
  args.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE;
  args.src = buffer;
  Check(api_->PJRT_Buffer_ToHostBuffer(&args), "asking for the size of a result");
  std::vector<float> values(args.dst_size / sizeof(float));
  args.dst = values.data();
  Check(api_->PJRT_Buffer_ToHostBuffer(&args), "copying from the device");
  Await(args.event, "copying from the device");
  return values;
}

void Device::Destroy(PJRT_Buffer* buffer) {
  PJRT_Buffer_Destroy_Args args{};
  args.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE;
  args.buffer = buffer;
  Check(api_->PJRT_Buffer_Destroy(&args), "destroying a buffer");
}

void Device::Destroy(PJRT_LoadedExecutable* executable) {
  PJRT_LoadedExecutable_Destroy_Args args{};
  args.struct_size = PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE;
  args.executable = executable;
  Check(api_->PJRT_LoadedExecutable_Destroy(&args), "destroying a program");
}

}  // namespace inference
