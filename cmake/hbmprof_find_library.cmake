# hbmprof_find_library(NAME HEADER LIBRARY [FOLDER...]): the target NAME::NAME, for a find module of that NAME. HEADER may
# lie in one of the FOLDERs. Installed with the package, in the folder of the modules.
macro(hbmprof_find_library name header library)
  find_path(${name}_INCLUDE_DIR NAMES ${header} PATH_SUFFIXES ${ARGN})
  find_library(${name}_LIBRARY NAMES ${library})
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)

  include(FindPackageHandleStandardArgs)
  find_package_handle_standard_args(${name} REQUIRED_VARS ${name}_LIBRARY ${name}_INCLUDE_DIR)

  if(${name}_FOUND AND NOT TARGET ${name}::${name})
    add_library(${name}::${name} UNKNOWN IMPORTED)
    set_target_properties(${name}::${name} PROPERTIES
      IMPORTED_LOCATION "${${name}_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}")
  endif()
endmacro()
