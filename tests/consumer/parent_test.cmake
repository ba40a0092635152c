# Configures the project in parent/, which has hbmprof as a part. With add_subdirectory it is built, run and installed,
# and a project that uses the installed one is built and run.
#
# cmake -DHOW=add_subdirectory|FetchContent -DOWN_TARGETS=ON|OFF -DSOURCE=repository -DWORK=scratch folder -DCC=compiler
#       -DCXX=compiler -DLAUNCHER=compiler launcher -P parent_test.cmake
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

file(REMOVE_RECURSE ${WORK}/build ${WORK}/prefix ${WORK}/user)
set(compilers -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER_LAUNCHER=${LAUNCHER}
  -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CXX_FLAGS=-O0)
# With CMAKE_UNITY_BUILD, as a parent may set it: the library is compiled in less time.
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/parent -B ${WORK}/build ${compilers}
  -DHBMPROF_SOURCE=${SOURCE} -DHOW=${HOW} -DOWN_TARGETS=${OWN_TARGETS} -DHBMPROF_CUDA=OFF -DCMAKE_UNITY_BUILD=ON)
if(HOW STREQUAL "FetchContent")  # it adds the same targets, which do not have to be compiled a second time
  return()
endif()

run(${CMAKE_COMMAND} --build ${WORK}/build)
run_consumer(${WORK}/build/parent_program ${WORK})
run(${CMAKE_COMMAND} --build ${WORK}/build --target parent_c_program)
run_consumer(${WORK}/build/parent_c_program ${WORK})

run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/parent/user -B ${WORK}/user ${compilers}
  -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/user)
run_consumer(${WORK}/user/user ${WORK})

# The command's part that needs protobuf.
run(${CMAKE_COMMAND} -DHBMPROF_BUILD_TOOL=ON ${WORK}/build)
run(${CMAKE_COMMAND} --build ${WORK}/build --target hbmprof_profile_proto)
