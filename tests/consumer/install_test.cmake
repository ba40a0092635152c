# Installs the library to an empty prefix, moves the prefix away, and builds and runs the project in this folder
# against it, without anything of the repository in reach.
#
# cmake -DVARIANT=static|shared -DSOURCE=repository -DBUILD=its build folder -DWORK=scratch folder
#       -DCXX=compiler -DCC=compiler -P install_test.cmake
# static: installs BUILD. shared: builds the library a second time, as a shared one, and installs that.

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${result}): ${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK}/first ${WORK}/prefix ${WORK}/consumer)
set(compilers -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX})

if(VARIANT STREQUAL "shared")
  set(library ${WORK}/library)
  run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${library} ${compilers} -DCMAKE_BUILD_TYPE=Debug
    -DBUILD_SHARED_LIBS=ON -DHBMPROF_BUILD_TESTS=OFF -DHBMPROF_BUILD_BENCHMARKS=OFF -DHBMPROF_BUILD_EXAMPLES=OFF
    -DHBMPROF_BUILD_TOOL=OFF)
  run(${CMAKE_COMMAND} --build ${library})
else()
  set(library ${BUILD})
endif()

# The package must work wherever its prefix is put afterwards.
run(${CMAKE_COMMAND} --install ${library} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)

file(GLOB_RECURSE libraries ${WORK}/prefix/*/libhbmprof.so ${WORK}/prefix/*/libhbmprof.a)
if(VARIANT STREQUAL "shared" AND NOT libraries MATCHES "libhbmprof\\.so$")
  message(FATAL_ERROR "the shared library was not installed: ${libraries}")
elseif(VARIANT STREQUAL "static" AND NOT libraries MATCHES "libhbmprof\\.a$")
  message(FATAL_ERROR "the static library was not installed: ${libraries}")
endif()

# Nor may it name a folder of this machine's build.
file(GLOB package ${WORK}/prefix/*/cmake/hbmprof/*.cmake ${WORK}/prefix/*/*/cmake/hbmprof/*.cmake)
foreach(file ${package})
  file(READ ${file} text)
  string(FIND "${text}" "${SOURCE}/" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${file} names ${SOURCE}")
  endif()
endforeach()

file(COPY ${SOURCE}/tests/consumer/ DESTINATION ${WORK}/consumer)
run(${CMAKE_COMMAND} -G Ninja -S ${WORK}/consumer -B ${WORK}/consumer/build ${compilers}
  -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/consumer/build)

set(programs consumer c_consumer)
if(EXISTS ${WORK}/prefix/include/hbmprof/cuda.h)
  list(APPEND programs cuda_consumer)
endif()
foreach(program ${programs})
  set(profile ${WORK}/consumer/${program}.pb.gz)
  run(${WORK}/consumer/build/${program} ${profile})
  if(NOT EXISTS ${profile})
    message(FATAL_ERROR "${program} left no profile")
  endif()
endforeach()
