# hbmprof_injected_library(NAME MAP SOURCES...): lib<NAME>.so, to be loaded into other people's programs. It exports what
# the version script MAP lists; what else it is made of is linked by the caller. It is never unloaded: what it has
# recorded, and where programs call it, is for ever.
function(hbmprof_injected_library name map)
  add_library(${name} MODULE ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE hbmprof_build_flags)
  # -Bsymbolic: a function of the same name elsewhere in the program does not take the place of its own. now: binding at
  # the first call would take up to 4 KiB of the caller's stack.
  target_link_options(${name} PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic LINKER:-z,nodelete LINKER:-z,now)
  # What nothing refers to is left out. Otherwise the archives' unused functions decide which C library is needed.
  target_compile_options(${name} PRIVATE -ffunction-sections -fdata-sections)
  target_link_options(${name} PRIVATE LINKER:--gc-sections)
  if(NOT HBMPROF_SANITIZER)
    # What is missing shows now, not inside somebody's server.
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${map})
endfunction()
