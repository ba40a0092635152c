# Toolchain file: builds for aarch64 on a Debian system with another processor, with Debian's cross compiler.
# HBMPROF_SYSROOT is the root folder of an aarch64 system with the libraries to link (scripts/arm64.sh makes one).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(HBMPROF_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-sysroot CACHE PATH "Root folder of an aarch64 system")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HBMPROF_SYSROOT)
get_filename_component(_root ${HBMPROF_SYSROOT} ABSOLUTE)
if(NOT EXISTS ${_root}/usr/lib)
  message(FATAL_ERROR "hbmprof: there is no aarch64 system in HBMPROF_SYSROOT (${_root}); scripts/arm64.sh makes one")
endif()
set(CMAKE_SYSROOT ${_root})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(CMAKE_FIND_ROOT_PATH ${_root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_DIR} "")
set(ENV{PKG_CONFIG_LIBDIR} ${_root}/usr/lib/aarch64-linux-gnu/pkgconfig:${_root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${_root})

# qemu runs the programs that the build makes and runs. Its processor `max` has pointer authentication.
find_program(HBMPROF_QEMU NAMES qemu-aarch64-static qemu-aarch64 NO_CMAKE_FIND_ROOT_PATH)
if(HBMPROF_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${HBMPROF_QEMU};-L;${_root};-cpu;max)
endif()
