# What is loaded into other people's programs: self-contained, so that nothing of it meets theirs. Made from the static
# library, whose symbols are hidden.

# The C interface once more, since the static library's own copy of it is hidden.
set(_c_api ${PROJECT_SOURCE_DIR}/src/api/c_api.cc ${PROJECT_SOURCE_DIR}/src/api/version.cc)
hbmprof_injected_library(hbmprof_pjrt ${CMAKE_CURRENT_SOURCE_DIR}/exports_pjrt_plugin.map pjrt_plugin.cc ${_c_api})
set_source_files_properties(${_c_api} TARGET_DIRECTORY hbmprof_pjrt PROPERTIES COMPILE_OPTIONS -fvisibility=default)

# Abseil stays a shared library. It cannot clash with another copy in the program: all its names are in a namespace of
# that one version, on Debian absl::debian3.
target_link_libraries(hbmprof_pjrt PRIVATE hbmprof absl::strings)
