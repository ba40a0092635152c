# libhbmprof_gpu.so, for LD_PRELOAD and OPENCL_LAYERS: the profiler, the driver's wrapped calls, and the OpenCL layer.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(STATUS "hbmprof: libhbmprof_gpu.so is for x86-64 and aarch64 Linux only, so it is not built")
  return()
endif()
if(HBMPROF_SANITIZER)
  message(STATUS "hbmprof: libhbmprof_gpu.so holds an unsanitized hbmprof, so it is not built here")
  return()
endif()

# The exported functions: the wrapped calls, dlopen, dlsym, _exit, exec*, the entries of NVTX and mstx, functions of its
# own, and those by which PyTorch and TensorFlow report blocks.
set(_backends ${PROJECT_SOURCE_DIR}/src/backends)
set(_musa ${PROJECT_BINARY_DIR}/src/backends/musa)
set(_calls ${_backends}/cuda/driver/driver_calls.inc ${_backends}/hip/hip_calls.inc ${_backends}/ascend/hal_calls.inc
  ${_musa}/musa_calls.inc ${_musa}/mu_calls.inc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_calls})
set(_exports InitializeInjectionNvtx2 InitInjectionMstx hbmprof_attach hbmprof_attach_text hbmprof_driver_coverage hbmprof_detach
  # Of PyTorch and TensorFlow (linker/report_hooks.cc).
  _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE
  _ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll)
# The OpenCL layer needs Khronos's headers.
find_path(HBMPROF_OPENCL_INCLUDE_DIR CL/cl_layer.h)
if(HBMPROF_OPENCL_INCLUDE_DIR)
  set(_opencl ${_backends}/opencl/layer.cc)
  list(APPEND _exports clGetLayerInfo clInitLayer clInitLayerWithProperties hbmprof_opencl_layer)
else()
  message(STATUS "hbmprof: CL/cl_layer.h is not found (Debian: opencl-headers), so `hbmprof run` will not record OpenCL")
endif()
foreach(_table IN LISTS _calls)
  file(STRINGS ${_table} _lines REGEX "^CALL\\(")
  list(TRANSFORM _lines REPLACE "^CALL\\(([A-Za-z0-9_]+),.*" "\\1")
  list(APPEND _exports ${_lines})
endforeach()
# A reference to hipMalloc@hip_4.2 is bound to a name without a version, but not to one with another version.
set(_unversioned ${_exports})
list(FILTER _unversioned INCLUDE REGEX "^hip")
list(FILTER _exports EXCLUDE REGEX "^hip")
# The functions of the C interface that a copy of hbmprof in the program calls. injected_profiler.cc defines some of them;
# the others get a second name.
set(_injected ${PROJECT_SOURCE_DIR}/src/core/injected/injected.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_injected})
file(READ ${_injected} _text)
string(REGEX MATCH "define HBMPROF_INJECTED_EVENTS.*define HBMPROF_INJECTED_OTHERS" _own "${_text}")
string(REGEX MATCHALL " F\\([a-z_]+\\)" _names "${_text}")
set(_second_names "")
foreach(_name IN LISTS _names)
  string(REGEX REPLACE " F.([a-z_]+).*" "\\1" _function "${_name}")
  list(APPEND _exports hbmprof_injected_${_function})
  string(FIND "${_own}" "${_name}" _position)
  if(_position EQUAL -1)
    list(APPEND _second_names LINKER:--defsym=hbmprof_injected_${_function}=hbmprof_${_function})
  endif()
endforeach()
# These replace functions of the C library: each has the version that the C library gave it first.
set(_end_calls _Exit _exit execl execle execlp execv execve execvp kill raise)
string(REPLACE ";" "\n" _list "${_exports};${_unversioned};${_end_calls};execvpe;dlopen;dlsym")
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/exports.txt CONTENT "@_list@\n" @ONLY)
string(REPLACE ";" "; " _end_calls "${_end_calls}")
string(REPLACE ";" ";\n    " _list "${_exports}")
# The symbol versions of the C library's functions (src/base/compat/first_glibc.h).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(_first "GLIBC_2.17 {
  global: @_end_calls@; execvpe; dlopen; dlsym;
};
GLIBC_2.34 {
  global: dlopen; dlsym;
} GLIBC_2.17;")
else()
  set(_first "GLIBC_2.2.5 {
  global: @_end_calls@; dlopen; dlsym;
};
GLIBC_2.11 {
  global: execvpe;
} GLIBC_2.2.5;
GLIBC_2.34 {
  global: dlopen; dlsym;
} GLIBC_2.11;")
endif()
string(CONFIGURE "${_first}" _first @ONLY)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/exports.map @ONLY CONTENT "@_first@
HBMPROF {
  global:
    @_list@;
  local: [!h]*; h[!i]*; hi[!p]*;
};
")

hbmprof_injected_library(hbmprof_gpu ${CMAKE_CURRENT_BINARY_DIR}/exports.map
  attach.cc
  gpu_preload.cc
  linker/deep_bind.cc
  linker/dynamic_linker.cc
  driver_shim.cc
  end_calls_exported.cc
  frameworks/frameworks.cc
  injected_profiler.cc
  frameworks/mstx_blocks.cc
  frameworks/nvtx.cc
  linker/report_hooks.cc
  frameworks/tensorflow_blocks.cc
  frameworks/torch_blocks.cc
  ${_c_api}
  ${_opencl}
  ${_backends}/ascend/hal_driver.cc
  ${_backends}/calls/adapter.cc
  ${_backends}/calls/driver.cc
  ${_backends}/calls/memory.cc
  ${_backends}/calls/memory_from_before.cc
  ${_backends}/calls/ranges.cc
  ${_backends}/cuda/driver/driver_queries.cc
  ${_backends}/cuda/driver/driver_structs.cc
  ${_backends}/cuda/shared/nvml.cc
  ${_backends}/hip/hip_driver.cc
  ${_backends}/musa/mu_driver.cc
  ${_musa}/musa_driver.cc)
target_include_directories(hbmprof_gpu PRIVATE ${PROJECT_BINARY_DIR})
set_source_files_properties(${_c_api} TARGET_DIRECTORY hbmprof_gpu PROPERTIES COMPILE_OPTIONS -fvisibility=default)
# A process that has got the file through memory finds the loaded library by this name (`hbmprof attach`).
target_link_options(hbmprof_gpu PRIVATE LINKER:-soname,libhbmprof_gpu.so ${_second_names})
# calls/driver.cc must call the C library's dlsym, not the one of this library.
target_compile_definitions(hbmprof_gpu PRIVATE HBMPROF_DLSYM=hbmprof_call_next_dlsym HBMPROF_EXPORTS_DLSYM)

# A file that `hbmprof run` preloads, too, for torch_npu and MindSpore (frameworks/mstx_blocks.cc). Only its name matters.
add_library(hbmprof_ascend_hook MODULE frameworks/ascend_kernel_hook.c)
set_target_properties(hbmprof_ascend_hook PROPERTIES OUTPUT_NAME ascend_kernel_hook)
target_link_options(hbmprof_ascend_hook PRIVATE -nostdlib)
add_dependencies(hbmprof_gpu hbmprof_ascend_hook)

# They are installed into their own folder, because programs do not link them.
if(HBMPROF_INSTALL)
  install(TARGETS hbmprof_gpu hbmprof_ascend_hook LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/hbmprof)
endif()
