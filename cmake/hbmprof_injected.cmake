# hbmprof_injected_library(NAME MAP SOURCES...): lib<NAME>.so, which is loaded into unchanged programs. It exports the names
# in the version script MAP. It is never unloaded, because programs keep pointers to its functions.
#
# It contains static copies of all libraries that it uses except the C library, and does not export them. So they cannot
# conflict with the program's, and the library loads where the distribution's packages are not installed. On x86-64 and
# aarch64 it loads with old C libraries (old_glibc.cc). If a static library is missing, a message says so, and the shared
# one is linked.
function(hbmprof_injected_library name map)
  add_library(${name} MODULE ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE hbmprof_build_flags)
  # -Bsymbolic: the library's calls reach its own functions, even if the program has functions of the same names. now:
  # binding at the first call would take up to 4 KiB of the caller's stack.
  target_link_options(${name} PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic LINKER:-z,nodelete LINKER:-z,now)
  set_target_properties(${name} PROPERTIES LINK_DEPENDS "${map};$<TARGET_FILE:hbmprof>")
  if(HBMPROF_SANITIZER)
    # The sanitizers need the shared C++ runtime.
    target_link_libraries(${name} PRIVATE hbmprof absl::strings)
    return()
  endif()
  # Undefined symbols are errors now, not in the program that loads the library.
  target_link_options(${name} PRIVATE LINKER:--no-undefined)
  target_link_options(${name} PRIVATE LINKER:--exclude-libs,ALL -static-libstdc++ -static-libgcc)
  add_dependencies(${name} hbmprof)

  set(_static $<TARGET_FILE:hbmprof>)
  get_target_property(_absl_type absl::status TYPE)
  find_library(HBMPROF_STATIC_ABSL_STATUS libabsl_status.a)
  if(_absl_type STREQUAL "SHARED_LIBRARY" AND HBMPROF_STATIC_ABSL_STATUS)
    cmake_path(GET HBMPROF_STATIC_ABSL_STATUS PARENT_PATH _absl_dir)
    file(GLOB _absl ${_absl_dir}/libabsl_*.a)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/abseil_stand_ins.cc)
    list(APPEND _static -Wl,--start-group ${_absl} -Wl,--end-group)
  else()
    list(APPEND _static absl::status absl::statusor absl::strings absl::time)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/libstdcxx_stand_ins.cc)
  endif()
  find_library(HBMPROF_STATIC_DEFLATE libdeflate.a)
  find_library(HBMPROF_STATIC_ELF libelf.a)
  find_library(HBMPROF_STATIC_ZLIB libz.a)  # libelf's
  if(HBMPROF_STATIC_ELF)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/libelf_stand_ins.cc)
  endif()
  foreach(_library DEFLATE ELF ZLIB)
    if(NOT HBMPROF_STATIC_${_library})
      message(STATUS "hbmprof: no static library for ${_library}, so ${name} needs the shared one")
    endif()
  endforeach()
  list(APPEND _static $<IF:$<BOOL:${HBMPROF_STATIC_DEFLATE}>,${HBMPROF_STATIC_DEFLATE},LibDeflate::LibDeflate>
    $<IF:$<BOOL:${HBMPROF_STATIC_ELF}>,${HBMPROF_STATIC_ELF},LibElf::LibElf>
    $<IF:$<BOOL:${HBMPROF_STATIC_ZLIB}>,${HBMPROF_STATIC_ZLIB},ZLIB::ZLIB> LibIberty::LibIberty)
  target_link_libraries(${name} PRIVATE ${_static} Threads::Threads ${CMAKE_DL_LIBS})

  hbmprof_link_old_glibc(${name})
endfunction()

# hbmprof_link_old_glibc(TARGET): makes the program or shared library run with glibc 2.17 and later. Has an effect only
# on x86-64 and aarch64.
function(hbmprof_link_old_glibc name)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/base/old_glibc.cc)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/old_glibc.cc TARGET_DIRECTORY ${name}
      PROPERTIES COMPILE_OPTIONS -fno-builtin)
    target_compile_options(${name} PRIVATE -ffunction-sections -fdata-sections)
    target_link_options(${name} PRIVATE LINKER:--gc-sections)
    # Unused functions are left out. Otherwise unused functions of the archives determine which C library is needed.
    # Some functions are in libc.so.6 since glibc 2.34. Earlier versions have them in libdl and libpthread.
    target_link_options(${name} PRIVATE LINKER:--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
      LINKER:--pop-state)
  endif()
endfunction()
