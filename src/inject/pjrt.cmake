# libhbmprof_pjrt.so.

hbmprof_injected_library(hbmprof_pjrt ${CMAKE_CURRENT_SOURCE_DIR}/exports_pjrt_plugin.map pjrt_plugin.cc ${_c_api})
set_source_files_properties(${_c_api} TARGET_DIRECTORY hbmprof_pjrt PROPERTIES COMPILE_OPTIONS -fvisibility=default)

# libhbmprof_c.so: the C interface for the Python package (python/hbmprof), and for programs that load it.
hbmprof_injected_library(hbmprof_c ${CMAKE_CURRENT_SOURCE_DIR}/exports_c.map ${_c_api})
set_source_files_properties(${_c_api} TARGET_DIRECTORY hbmprof_c PROPERTIES COMPILE_OPTIONS -fvisibility=default)
