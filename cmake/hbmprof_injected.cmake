# hbmprof_injected_library(NAME MAP SOURCES...): lib<NAME>.so, which is loaded into unchanged programs. It exports the names
# in the version script MAP. It is never unloaded, because programs keep pointers to its functions.
#
# It contains static copies of all libraries that it uses except the C library, and does not export them. So they cannot
# conflict with the program's, and the library loads where the distribution's packages are not installed. If a static
# library is missing, a message says so, and the shared one is linked. With HBMPROF_SHARED_DEPENDENCIES all are shared:
# then a program gets the distribution's C++ runtime and abseil, also one that brings others. With HBMPROF_PORTABLE it
# loads with old C libraries (old_glibc.cc).
function(hbmprof_injected_library name map)
  add_library(${name} MODULE ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE hbmprof_build_flags)
  # -Bsymbolic: the library's calls reach its own functions, even if the program has functions of the same names. now:
  # binding at the first call would take up to 4 KiB of the caller's stack. separate-code: a page of the table of symbols,
  # which dynamic_linker.cc writes to, has no code.
  target_link_options(${name} PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic LINKER:-z,nodelete LINKER:-z,now
    LINKER:-z,separate-code)
  set_target_properties(${name} PROPERTIES LINK_DEPENDS "${map};$<TARGET_FILE:hbmprof>" UNITY_BUILD OFF)
  if(HBMPROF_SANITIZER)
    # The sanitizers need the shared C++ runtime.
    target_link_libraries(${name} PRIVATE hbmprof absl::strings)
    return()
  endif()
  # Undefined symbols are errors now, not in the program that loads the library. Unused functions are left out.
  target_compile_options(${name} PRIVATE -ffunction-sections -fdata-sections)
  target_link_options(${name} PRIVATE LINKER:--no-undefined LINKER:--exclude-libs,ALL LINKER:--gc-sections)
  if(HBMPROF_SHARED_DEPENDENCIES)
    target_link_libraries(${name} PRIVATE hbmprof absl::strings ${CMAKE_DL_LIBS})
    return()
  endif()
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/replacements/unwinder_start.cc)
  add_dependencies(${name} hbmprof)

  set(_static $<TARGET_FILE:hbmprof>)
  get_target_property(_absl_type absl::status TYPE)
  find_library(HBMPROF_STATIC_ABSL_STATUS libabsl_status.a)
  if(_absl_type STREQUAL "SHARED_LIBRARY" AND HBMPROF_STATIC_ABSL_STATUS)
    cmake_path(GET HBMPROF_STATIC_ABSL_STATUS PARENT_PATH _absl_dir)
    file(GLOB _absl ${_absl_dir}/libabsl_*.a)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/replacements/abseil.cc)
    list(APPEND _static -Wl,--start-group ${_absl} -Wl,--end-group)
  else()
    list(APPEND _static absl::status absl::statusor absl::strings absl::time)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/replacements/libstdcxx.cc)
  endif()
  find_library(HBMPROF_STATIC_DEFLATE libdeflate.a)
  find_library(HBMPROF_STATIC_ELF libelf.a)
  find_library(HBMPROF_STATIC_ZLIB libz.a)  # libelf's
  if(HBMPROF_STATIC_ELF)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/inject/replacements/libelf.cc)
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

  if(HBMPROF_PORTABLE)
    hbmprof_link_old_glibc(${name})
  endif()
endfunction()

# hbmprof_link_old_glibc(TARGET): makes the program or shared library run with glibc 2.17 and later. Has an effect only
# on x86-64 and aarch64.
function(hbmprof_link_old_glibc name)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/base/compat/old_glibc.cc)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/compat/old_glibc.cc TARGET_DIRECTORY ${name}
      PROPERTIES COMPILE_OPTIONS -fno-builtin)
    # Otherwise unused functions of the archives determine which C library is needed.
    target_compile_options(${name} PRIVATE -ffunction-sections -fdata-sections)
    target_link_options(${name} PRIVATE LINKER:--gc-sections)
    if(NOT TARGET hbmprof_old_libdl)
      _hbmprof_add_old_libraries()
    endif()
    set(_libraries $<TARGET_FILE:hbmprof_old_libdl> $<TARGET_FILE:hbmprof_old_libpthread>)
    add_dependencies(${name} hbmprof_old_libdl hbmprof_old_libpthread)
    target_link_options(${name} PRIVATE LINKER:--push-state,--no-as-needed ${_libraries} LINKER:--pop-state)
    set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${_libraries})
  endif()
endfunction()

# Adds a libdl.so.2 and a libpthread.so.0 with empty functions. They are used only to link; at run time the real
# libraries are loaded. Before glibc 2.30, the dynamic linker looks for a function only in the library in which the
# linker found it. So the linker must find each function in the library that has it in glibc 2.17. (Since glibc 2.34,
# libc.so.6 has them all.) The list has all functions that old_glibc.cc calls. Their versions are not default versions,
# so the linker uses them only for the calls of old_glibc.cc.
function(_hbmprof_add_old_libraries)
  set(_functions_dl dladdr dlclose dlerror dlopen dlsym dlvsym)
  set(_newer_dl dladdr1 dlinfo)
  set(_functions_pthread __pthread_key_create pthread_attr_setstacksize pthread_create pthread_detach
    pthread_getcpuclockid pthread_getspecific pthread_join pthread_key_create pthread_key_delete pthread_once
    pthread_rwlock_destroy pthread_rwlock_init pthread_rwlock_rdlock pthread_rwlock_tryrdlock pthread_rwlock_unlock
    pthread_rwlock_wrlock pthread_setspecific pthread_sigmask sem_init sem_post sem_timedwait sem_wait)
  set(_newer_pthread pthread_condattr_setclock)
  set(_soversion_dl 2)
  set(_soversion_pthread 0)
  set(_first GLIBC_2.2.5)
  set(_newer GLIBC_2.3.3)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(_first GLIBC_2.17)
    set(_newer GLIBC_2.17)
  endif()
  set(_folder ${PROJECT_BINARY_DIR}/old_glibc)
  file(CONFIGURE OUTPUT ${_folder}/versions.map CONTENT "GLIBC_2.2.5 {}; GLIBC_2.3.3 {}; GLIBC_2.17 {};\n" @ONLY)
  foreach(_library dl pthread)
    set(_source "")
    foreach(_age first newer)
      set(_names ${_functions_${_library}})
      if(_age STREQUAL newer)
        set(_names ${_newer_${_library}})
      endif()
      foreach(_name IN LISTS _names)
        string(APPEND _source "extern \"C\" void old_${_name}() {}\n"
          "asm(\".symver old_${_name},${_name}\" \"@\" \"${_${_age}}\");\n")
      endforeach()
    endforeach()
    file(CONFIGURE OUTPUT ${_folder}/${_library}.cc CONTENT "${_source}" @ONLY)
    set(_target hbmprof_old_lib${_library})
    add_library(${_target} SHARED ${_folder}/${_library}.cc)
    set_target_properties(${_target} PROPERTIES OUTPUT_NAME ${_library} SOVERSION ${_soversion_${_library}}
      LIBRARY_OUTPUT_DIRECTORY ${_folder})
    target_link_options(${_target} PRIVATE -nostdlib LINKER:--version-script=${_folder}/versions.map)
  endforeach()
endfunction()
