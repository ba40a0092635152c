# hbmprof_injected_library(NAME MAP SOURCES...): lib<NAME>.so, which is loaded into unchanged programs. It exports the names
# in the version script MAP. The caller links other libraries to it. It is never unloaded, because programs keep pointers to
# its functions.
function(hbmprof_injected_library name map)
  add_library(${name} MODULE ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE hbmprof_build_flags)
  # -Bsymbolic: a function of the same name elsewhere in the program does not take the place of its own. now: binding at
  # the first call would take up to 4 KiB of the caller's stack.
  target_link_options(${name} PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic LINKER:-z,nodelete LINKER:-z,now)
  # Unused functions are left out. Otherwise unused functions of the archives determine which C library is needed.
  target_compile_options(${name} PRIVATE -ffunction-sections -fdata-sections)
  target_link_options(${name} PRIVATE LINKER:--gc-sections)
  if(NOT HBMPROF_SANITIZER)
    # Undefined symbols are errors now, not in the program that loads the library.
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${map})
endfunction()
