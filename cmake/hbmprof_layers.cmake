# hbmprof_check_layers(TARGET ROOT): a target, part of `all`, that fails if a file under ROOT includes
# a header that the tables in ROOT/src/README.md do not allow.

set(HBMPROF_LAYER_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/../scripts/check_layers.py)

function(hbmprof_check_layers target root)
  find_package(Python3 COMPONENTS Interpreter)
  if(NOT Python3_Interpreter_FOUND)
    message(STATUS "hbmprof: no python3, so the layer check is left out")
    return()
  endif()
  add_custom_target(${target} ALL
    COMMAND Python3::Interpreter ${HBMPROF_LAYER_SCRIPT} ${root}
    COMMENT "Checking which layer includes which" VERBATIM)
endfunction()
