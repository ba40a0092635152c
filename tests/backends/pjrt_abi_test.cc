// Compares hbmprof's declarations of PJRT's ABI with PJRT's header, if one is found. The compiler does all checks; the
// test only prints the version.
#include <cstddef>
#include <cstdio>

#include "gtest/gtest.h"
#include "pjrt_c_api.h"
#include "src/backends/pjrt/abi.h"
#include "tests/support/fake_pjrt/more_abi.h"

namespace {

namespace abi = hbmprof::internal::pjrt;

static_assert(sizeof(abi::Api) == offsetof(PJRT_Api, PJRT_Error_Destroy));
static_assert(offsetof(abi::Api, version.minor) == offsetof(PJRT_Api, pjrt_api_version.minor_version));

#define SAME_SLOT(ours, theirs) static_assert(abi::OffsetOf(abi::ours) == offsetof(PJRT_Api, theirs), #theirs)
SAME_SLOT(kErrorDestroy, PJRT_Error_Destroy);
SAME_SLOT(kErrorMessage, PJRT_Error_Message);
SAME_SLOT(kErrorGetCode, PJRT_Error_GetCode);
SAME_SLOT(kPluginInitialize, PJRT_Plugin_Initialize);
SAME_SLOT(kEventDestroy, PJRT_Event_Destroy);
SAME_SLOT(kEventIsReady, PJRT_Event_IsReady);
SAME_SLOT(kEventError, PJRT_Event_Error);
SAME_SLOT(kEventAwait, PJRT_Event_Await);
SAME_SLOT(kClientCreate, PJRT_Client_Create);
SAME_SLOT(kClientDestroy, PJRT_Client_Destroy);
SAME_SLOT(kClientPlatformName, PJRT_Client_PlatformName);
SAME_SLOT(kClientAddressableDevices, PJRT_Client_AddressableDevices);
SAME_SLOT(kClientCompile, PJRT_Client_Compile);
SAME_SLOT(kBufferFromHostBuffer, PJRT_Client_BufferFromHostBuffer);
SAME_SLOT(kDeviceDescriptionDebugString, PJRT_DeviceDescription_DebugString);
SAME_SLOT(kDeviceGetDescription, PJRT_Device_GetDescription);
SAME_SLOT(kDeviceDefaultMemory, PJRT_Device_DefaultMemory);
SAME_SLOT(kDeviceMemoryStats, PJRT_Device_MemoryStats);
SAME_SLOT(kMemoryKind, PJRT_Memory_Kind);
SAME_SLOT(kMemoryAddressableByDevices, PJRT_Memory_AddressableByDevices);
SAME_SLOT(kExecutableDestroy, PJRT_Executable_Destroy);
SAME_SLOT(kExecutableName, PJRT_Executable_Name);
SAME_SLOT(kExecutableNumOutputs, PJRT_Executable_NumOutputs);
SAME_SLOT(kExecutableSizeOfGeneratedCode, PJRT_Executable_SizeOfGeneratedCodeInBytes);
SAME_SLOT(kLoadedExecutableDestroy, PJRT_LoadedExecutable_Destroy);
SAME_SLOT(kLoadedExecutableGetExecutable, PJRT_LoadedExecutable_GetExecutable);
SAME_SLOT(kLoadedExecutableAddressableDevices, PJRT_LoadedExecutable_AddressableDevices);
SAME_SLOT(kLoadedExecutableDelete, PJRT_LoadedExecutable_Delete);
SAME_SLOT(kLoadedExecutableExecute, PJRT_LoadedExecutable_Execute);
SAME_SLOT(kDeserializeAndLoad, PJRT_Executable_DeserializeAndLoad);
SAME_SLOT(kBufferDestroy, PJRT_Buffer_Destroy);
SAME_SLOT(kBufferElementType, PJRT_Buffer_ElementType);
SAME_SLOT(kBufferDimensions, PJRT_Buffer_Dimensions);
SAME_SLOT(kBufferOnDeviceSize, PJRT_Buffer_OnDeviceSizeInBytes);
SAME_SLOT(kBufferMemory, PJRT_Buffer_Memory);
SAME_SLOT(kBufferDelete, PJRT_Buffer_Delete);
SAME_SLOT(kBufferIsDeleted, PJRT_Buffer_IsDeleted);
SAME_SLOT(kBufferCopyToDevice, PJRT_Buffer_CopyToDevice);
SAME_SLOT(kBufferToHostBuffer, PJRT_Buffer_ToHostBuffer);
SAME_SLOT(kBufferIncreaseReferences, PJRT_Buffer_IncreaseExternalReferenceCount);
SAME_SLOT(kBufferDecreaseReferences, PJRT_Buffer_DecreaseExternalReferenceCount);
SAME_SLOT(kBufferDevicePointer, PJRT_Buffer_OpaqueDeviceMemoryDataPointer);
SAME_SLOT(kBufferCopyToMemory, PJRT_Buffer_CopyToMemory);
SAME_SLOT(kCreateView, PJRT_Client_CreateViewOfDeviceBuffer);
SAME_SLOT(kExecutableMemoryStats, PJRT_Executable_GetCompiledMemoryStats);
SAME_SLOT(kTransferManagerDestroy, PJRT_AsyncHostToDeviceTransferManager_Destroy);
SAME_SLOT(kCreateBuffersForTransfer, PJRT_Client_CreateBuffersForAsyncHostToDevice);
SAME_SLOT(kTransferManagerRetrieve, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer);
SAME_SLOT(kTransferManagerDevice, PJRT_AsyncHostToDeviceTransferManager_Device);
SAME_SLOT(kTransferManagerBufferSize, PJRT_AsyncHostToDeviceTransferManager_BufferSize);
SAME_SLOT(kDmaMap, PJRT_Client_DmaMap);
SAME_SLOT(kDmaUnmap, PJRT_Client_DmaUnmap);
SAME_SLOT(kCreateUninitialized, PJRT_Client_CreateUninitializedBuffer);
SAME_SLOT(kCreateAlias, PJRT_Client_CreateAliasBuffer);
SAME_SLOT(kFulfillAlias, PJRT_Client_FulfillAliasBuffer);
#if PJRT_API_MINOR >= 82
SAME_SLOT(kCreateError, PJRT_Client_CreateErrorBuffer);
#endif
#if PJRT_API_MINOR >= 88
SAME_SLOT(kDonateWithControlDependency, PJRT_Buffer_DonateWithControlDependency);
#endif
#if PJRT_API_MINOR >= 95
SAME_SLOT(kClientLoad, PJRT_Client_Load);
#endif
#if PJRT_API_MINOR >= 98
SAME_SLOT(kBufferBitcast, PJRT_Buffer_Bitcast);
#endif

#define SAME_FIELD(ours, our_field, theirs, their_field)                           \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(abi::ours::our_field) == sizeof(theirs::their_field),   \
                #theirs "::" #their_field)
SAME_FIELD(ErrorMessageArgs, message_size, PJRT_Error_Message_Args, message_size);
SAME_FIELD(ErrorGetCodeArgs, code, PJRT_Error_GetCode_Args, code);
SAME_FIELD(EventArgs, event, PJRT_Event_Await_Args, event);
SAME_FIELD(EventIsReadyArgs, is_ready, PJRT_Event_IsReady_Args, is_ready);
SAME_FIELD(ClientCreateArgs, client, PJRT_Client_Create_Args, client);
SAME_FIELD(ClientCreateArgs, kv_try_get_user_arg, PJRT_Client_Create_Args, kv_try_get_user_arg);
SAME_FIELD(ClientDestroyArgs, client, PJRT_Client_Destroy_Args, client);
SAME_FIELD(ClientTextArgs, text_size, PJRT_Client_PlatformName_Args, platform_name_size);
SAME_FIELD(ClientAddressableDevicesArgs, devices, PJRT_Client_AddressableDevices_Args, addressable_devices);
SAME_FIELD(ClientAddressableDevicesArgs, num_devices, PJRT_Client_AddressableDevices_Args, num_addressable_devices);
SAME_FIELD(Program, code, PJRT_Program, code);
SAME_FIELD(Program, format_size, PJRT_Program, format_size);
SAME_FIELD(ClientCompileArgs, executable, PJRT_Client_Compile_Args, executable);
SAME_FIELD(DeserializeAndLoadArgs, loaded_executable, PJRT_Executable_DeserializeAndLoad_Args, loaded_executable);
SAME_FIELD(BufferFromHostBufferArgs, host_buffer_semantics, PJRT_Client_BufferFromHostBuffer_Args,
           host_buffer_semantics);
SAME_FIELD(BufferFromHostBufferArgs, device, PJRT_Client_BufferFromHostBuffer_Args, device);
SAME_FIELD(BufferFromHostBufferArgs, memory, PJRT_Client_BufferFromHostBuffer_Args, memory);
SAME_FIELD(BufferFromHostBufferArgs, buffer, PJRT_Client_BufferFromHostBuffer_Args, buffer);
SAME_FIELD(CreateUninitializedArgs, device, PJRT_Client_CreateUninitializedBuffer_Args, device);
SAME_FIELD(CreateUninitializedArgs, memory, PJRT_Client_CreateUninitializedBuffer_Args, memory);
SAME_FIELD(CreateUninitializedArgs, buffer, PJRT_Client_CreateUninitializedBuffer_Args, buffer);
SAME_FIELD(CreateViewArgs, device, PJRT_Client_CreateViewOfDeviceBuffer_Args, device);
SAME_FIELD(CreateViewArgs, buffer, PJRT_Client_CreateViewOfDeviceBuffer_Args, buffer);
SAME_FIELD(CreateViewArgs, memory, PJRT_Client_CreateViewOfDeviceBuffer_Args, memory);
SAME_FIELD(CreateAliasArgs, memory, PJRT_Client_CreateAliasBuffer_Args, memory);
SAME_FIELD(CreateAliasArgs, buffer, PJRT_Client_CreateAliasBuffer_Args, alias_buffer);
SAME_FIELD(CreateAliasArgs, callback, PJRT_Client_CreateAliasBuffer_Args, fulfill_alias_buffer_cb);
SAME_FIELD(FulfillAliasArgs, buffer, PJRT_Client_FulfillAliasBuffer_Args, buffer);
SAME_FIELD(FulfillAliasArgs, callback, PJRT_Client_FulfillAliasBuffer_Args, fulfill_alias_buffer_cb);
SAME_FIELD(ShapeSpec, type, PJRT_ShapeSpec, element_type);
static_assert(sizeof(abi::ShapeSpec) == sizeof(PJRT_ShapeSpec));
SAME_FIELD(CreateBuffersForTransferArgs, num_shapes, PJRT_Client_CreateBuffersForAsyncHostToDevice_Args,
           num_shape_specs);
SAME_FIELD(CreateBuffersForTransferArgs, memory, PJRT_Client_CreateBuffersForAsyncHostToDevice_Args, memory);
SAME_FIELD(CreateBuffersForTransferArgs, manager, PJRT_Client_CreateBuffersForAsyncHostToDevice_Args, transfer_manager);
SAME_FIELD(TransferManagerRetrieveArgs, index, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args, buffer_index);
SAME_FIELD(TransferManagerRetrieveArgs, buffer, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args, buffer_out);
SAME_FIELD(TransferManagerDeviceArgs, device, PJRT_AsyncHostToDeviceTransferManager_Device_Args, device_out);
SAME_FIELD(TransferManagerBufferSizeArgs, size, PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args, buffer_size);
SAME_FIELD(DmaMapArgs, size, PJRT_Client_DmaMap_Args, size);
SAME_FIELD(DmaUnmapArgs, data, PJRT_Client_DmaUnmap_Args, data);
SAME_FIELD(DeviceGetDescriptionArgs, description, PJRT_Device_GetDescription_Args, device_description);
SAME_FIELD(DeviceDescriptionTextArgs, text_size, PJRT_DeviceDescription_DebugString_Args, debug_string_size);
SAME_FIELD(DeviceDefaultMemoryArgs, memory, PJRT_Device_DefaultMemory_Args, memory);
SAME_FIELD(DeviceMemoryStatsArgs, bytes_in_use, PJRT_Device_MemoryStats_Args, bytes_in_use);
SAME_FIELD(DeviceMemoryStatsArgs, bytes_limit.value, PJRT_Device_MemoryStats_Args, bytes_limit);
SAME_FIELD(DeviceMemoryStatsArgs, bytes_limit.is_set, PJRT_Device_MemoryStats_Args, bytes_limit_is_set);
SAME_FIELD(DeviceMemoryStatsArgs, largest_free_block_bytes.value, PJRT_Device_MemoryStats_Args,
           largest_free_block_bytes);
SAME_FIELD(MemoryKindArgs, kind_size, PJRT_Memory_Kind_Args, kind_size);
SAME_FIELD(MemoryDevicesArgs, num_devices, PJRT_Memory_AddressableByDevices_Args, num_devices);
SAME_FIELD(ExecutableNameArgs, name_size, PJRT_Executable_Name_Args, executable_name_size);
SAME_FIELD(ExecutableNumOutputsArgs, num_outputs, PJRT_Executable_NumOutputs_Args, num_outputs);
SAME_FIELD(ExecutableSizeArgs, size, PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, size_in_bytes);
SAME_FIELD(ExecutableMemoryStatsArgs, temp, PJRT_Executable_GetCompiledMemoryStats_Args, temp_size_in_bytes);
SAME_FIELD(ExecutableMemoryStatsArgs, peak_memory, PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes);
SAME_FIELD(GetExecutableArgs, executable, PJRT_LoadedExecutable_GetExecutable_Args, executable);
SAME_FIELD(ExecutableDevicesArgs, num_devices, PJRT_LoadedExecutable_AddressableDevices_Args, num_addressable_devices);
SAME_FIELD(ExecuteOptions, num_non_donatable_inputs, PJRT_ExecuteOptions, num_non_donatable_input_indices);
SAME_FIELD(ExecuteOptions, non_donatable_inputs, PJRT_ExecuteOptions, non_donatable_input_indices);
SAME_FIELD(ExecuteOptions, call_location, PJRT_ExecuteOptions, call_location);
SAME_FIELD(ExecuteArgs, argument_lists, PJRT_LoadedExecutable_Execute_Args, argument_lists);
SAME_FIELD(ExecuteArgs, num_args, PJRT_LoadedExecutable_Execute_Args, num_args);
SAME_FIELD(ExecuteArgs, output_lists, PJRT_LoadedExecutable_Execute_Args, output_lists);
SAME_FIELD(ExecuteArgs, execute_device, PJRT_LoadedExecutable_Execute_Args, execute_device);
SAME_FIELD(BufferIsDeletedArgs, is_deleted, PJRT_Buffer_IsDeleted_Args, is_deleted);
SAME_FIELD(BufferElementTypeArgs, type, PJRT_Buffer_ElementType_Args, type);
SAME_FIELD(BufferDimensionsArgs, num_dims, PJRT_Buffer_Dimensions_Args, num_dims);
SAME_FIELD(BufferOnDeviceSizeArgs, size, PJRT_Buffer_OnDeviceSizeInBytes_Args, on_device_size_in_bytes);
SAME_FIELD(BufferMemoryArgs, memory, PJRT_Buffer_Memory_Args, memory);
SAME_FIELD(BufferCopyToDeviceArgs, copy, PJRT_Buffer_CopyToDevice_Args, dst_buffer);
SAME_FIELD(BufferCopyToMemoryArgs, copy, PJRT_Buffer_CopyToMemory_Args, dst_buffer);

TEST(PjrtAbi, MatchesPjrtHeader) {
  std::printf("compiled against pjrt_c_api.h of version %d.%d\n", PJRT_API_MAJOR, PJRT_API_MINOR);
  // The index of a name is the number of its element type.
  EXPECT_STREQ(abi::kElementTypeNames[PJRT_Buffer_Type_F32], "f32");
  EXPECT_STREQ(abi::kElementTypeNames[PJRT_Buffer_Type_BF16], "bf16");
  EXPECT_STREQ(abi::kElementTypeNames[PJRT_Buffer_Type_F4E2M1FN], "f4e2m1fn");
  EXPECT_EQ(abi::kErrorResourceExhausted, PJRT_Error_Code_RESOURCE_EXHAUSTED);
}

}  // namespace
