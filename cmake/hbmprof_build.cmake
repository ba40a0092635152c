# Compiler options of every target of this project: standard, warnings, visibility, sanitizers. Programs that link the
# library do not get them.

# Off by default, because a user's compiler may be newer than its warnings. The presets set it.
option(HBMPROF_WERROR "Stop the build at a warning" OFF)
set(HBMPROF_WERROR_FLAG $<$<BOOL:${HBMPROF_WERROR}>:-Werror>)
set(HBMPROF_SANITIZER "" CACHE STRING "Sanitizers for every target: empty, address+undefined or thread")
set_property(CACHE HBMPROF_SANITIZER PROPERTY STRINGS "" "address+undefined" "thread")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(hbmprof_build_flags INTERFACE)
target_compile_features(hbmprof_build_flags INTERFACE cxx_std_17)
target_compile_options(hbmprof_build_flags INTERFACE
  -Wall -Wextra
  # A distribution's flags may turn it on. It joins the files' assembler code, whose macros have the same names.
  -fno-lto
  ${HBMPROF_WERROR_FLAG}
  # Clang checks lock annotations; g++ cannot.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>
  # Designated initializers omit members with default values.
  -Wno-missing-field-initializers)

# Exported names are marked (src/api/public/exported.h).
target_compile_options(hbmprof_build_flags INTERFACE
  -fvisibility=hidden $<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>)

if(HBMPROF_SANITIZER STREQUAL "address+undefined")
  set(_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(HBMPROF_SANITIZER STREQUAL "thread")
  set(_sanitize -fsanitize=thread -fno-omit-frame-pointer)
elseif(HBMPROF_SANITIZER)
  message(FATAL_ERROR "HBMPROF_SANITIZER is '${HBMPROF_SANITIZER}': use address+undefined or thread")
endif()
if(HBMPROF_SANITIZER)
  add_compile_options(${_sanitize})
  add_link_options(${_sanitize})
endif()

# hbmprof_unite_folders(TARGET): with CMAKE_UNITY_BUILD, the sources of one folder are compiled together, because names
# that are local to a source can occur in more than one folder. Sources that have compile options of their own are
# compiled alone.
function(hbmprof_unite_folders target)
  get_target_property(_sources ${target} SOURCES)
  foreach(_source IN LISTS _sources)
    cmake_path(ABSOLUTE_PATH _source)
    cmake_path(GET _source PARENT_PATH _folder)
    cmake_path(GET _folder FILENAME _folder)
    set_property(SOURCE ${_source} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP ${_folder})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()
