# Builds and runs the project in project/ against the installed library, in a folder outside of the repository.
#
# cmake -DKIND=static|shared|both -DPREFIX=where it is installed -DWORK=scratch folder -DCC=compiler -DCXX=compiler
#       -DSTANDARD=17|20 [-DFLAGS=compiler flags] [-DCMAKE=the cmake that the project uses]
#       [-DREFUSED=text] [-DCOMPONENT=name] [-DDEFINITION=-Dname=value] -P project_test.cmake
# REFUSED: the configuration must fail with a message that contains the text. COMPONENT: of find_package(hbmprof).
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

if(NOT CMAKE)
  set(CMAKE ${CMAKE_COMMAND})
endif()
file(REMOVE_RECURSE ${WORK})
file(COPY ${CMAKE_CURRENT_LIST_DIR}/project DESTINATION ${WORK})
set(build ${WORK}/build)
set(configure ${CMAKE} -G Ninja -S ${WORK}/project -B ${build} -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${PREFIX} -DKIND=${KIND} -DCMAKE_CXX_STANDARD=${STANDARD} -DCMAKE_CXX_FLAGS=${FLAGS}
  -DCOMPONENT=${COMPONENT} ${DEFINITION})
if(REFUSED)
  execute_process(COMMAND ${configure} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  # CMake breaks the lines of a message.
  string(REGEX REPLACE "[ \n]+" " " message "${output}")
  string(FIND "${message}" "${REFUSED}" position)
  if(result EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "the project was not refused with \"${REFUSED}\" (${result}):\n${output}")
  endif()
  return()
endif()

run(${configure})
run(${CMAKE} --build ${build})
set(programs consumer c_consumer)
if(KIND STREQUAL "static")
  list(APPEND programs no_exceptions_consumer lto_consumer)
  if(EXISTS ${PREFIX}/include/hbmprof/cuda.h)
    list(APPEND programs cuda_consumer)
  endif()
  run(${build}/plugin_host ${build}/libfirst_plugin.so ${build}/libsecond_plugin.so)
endif()
foreach(program ${programs})
  run_consumer(${build}/${program} ${WORK})
endforeach()
