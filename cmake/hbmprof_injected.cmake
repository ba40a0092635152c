# hbmprof_injected_library(NAME MAP SOURCES...): lib<NAME>.so, to be loaded into other people's programs. It exports what
# MAP lists, with a hidden copy of hbmprof's own code inside. It is never unloaded: what it has recorded, and where
# programs call it, is for ever.
#
# Abseil stays a shared library: Debian's archives of it are not position-independent (their thread-local variables
# cannot go into a shared object). It cannot clash with another copy in the program: all its names are in a namespace of
# that one version, on Debian absl::debian3.
function(hbmprof_injected_library name map)
  # The C interface once more, since the static library's own copy of it is hidden.
  add_library(${name} MODULE ${ARGN} ${PROJECT_SOURCE_DIR}/src/api/c_api.cc)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/api/c_api.cc TARGET_DIRECTORY ${name}
    PROPERTIES COMPILE_OPTIONS -fvisibility=default)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE hbmprof hbmprof_build_flags absl::strings absl::flat_hash_map)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/${map})
  # -Bsymbolic: a function of the same name elsewhere in the program does not take the place of its own.
  target_link_options(${name} PRIVATE LINKER:--version-script=${script} LINKER:-Bsymbolic LINKER:-z,nodelete)
  if(NOT HBMPROF_SANITIZER)
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${script})
endfunction()
