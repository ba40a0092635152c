# HBMPROF_PORTABLE: the command contains static copies of all libraries that it uses, except the C library, and runs with
# old C libraries (src/base/compat/old_glibc.cc). It is for packages that other distributions install (scripts/package.sh).
# Include this file before the libraries are searched for, and call hbmprof_take_static_absl() after abseil was found.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(Protobuf_USE_STATIC_LIBS ON)

# The CMake files of a distribution's abseil name its shared libraries. Its static ones are in the same folder.
function(hbmprof_take_static_absl)
  get_property(_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER _targets INCLUDE REGEX "^absl::")
  foreach(_target IN LISTS _targets)
    get_target_property(_type ${_target} TYPE)
    if(NOT _type STREQUAL "SHARED_LIBRARY")
      continue()
    endif()
    get_target_property(_configurations ${_target} IMPORTED_CONFIGURATIONS)
    foreach(_configuration IN LISTS _configurations)
      get_target_property(_file ${_target} IMPORTED_LOCATION_${_configuration})
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" _static "${_file}")
      if(NOT EXISTS "${_static}")
        message(FATAL_ERROR "hbmprof: HBMPROF_PORTABLE needs ${_static}, which does not exist")
      endif()
      set_target_properties(${_target} PROPERTIES IMPORTED_LOCATION_${_configuration} "${_static}"
        IMPORTED_SONAME_${_configuration} "")
    endforeach()
  endforeach()
endfunction()

# hbmprof_take_old_glibc(FOLDER...): the programs and shared libraries that the CMakeLists.txt of these folders define
# run with old C libraries, too, and need no libstdc++ of the system. scripts/package_test.sh runs tests this way.
function(hbmprof_take_old_glibc)
  foreach(_folder IN LISTS ARGN)
    get_property(_targets DIRECTORY ${_folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(_target IN LISTS _targets)
      get_target_property(_type ${_target} TYPE)
      if(_type STREQUAL "EXECUTABLE")
        target_compile_definitions(${_target} PRIVATE HBMPROF_IS_PROGRAM)
      elseif(_type MATCHES "^(SHARED|MODULE)_LIBRARY$")
        target_link_options(${_target} PRIVATE LINKER:--exclude-libs,ALL)
      else()
        continue()
      endif()
      hbmprof_link_old_glibc(${_target})
      target_sources(${_target} PRIVATE ${PROJECT_SOURCE_DIR}/src/base/fork.cc)
      target_include_directories(${_target} PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_options(${_target} PRIVATE -static-libstdc++ -static-libgcc)
    endforeach()
  endforeach()
endfunction()
