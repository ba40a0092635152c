# Installs the build, uninstalls it, installs it again and moves the prefix away: to PREFIX, which the other consumers use.
#
# cmake -DSOURCE=repository -DBUILD=its build folder -DPREFIX=folder -P install_test.cmake
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

set(first ${PREFIX}.first)
file(REMOVE_RECURSE ${first} ${PREFIX})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${first})
foreach(file lib/libhbmprof.a lib/libhbmprof.so lib/hbmprof/libhbmprof_pjrt.so lib/libhbmprof_simulated.a
    lib/pkgconfig/hbmprof.pc lib/pkgconfig/hbmprof-simulated.pc include/hbmprof/version.h
    share/hbmprof/skills/hbmprof/SKILL.md)
  if(NOT EXISTS ${first}/${file})
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()

# A file that was not installed stays.
file(WRITE ${first}/include/hbmprof/others.h "")
run(${CMAKE_COMMAND} --build ${BUILD} --target uninstall)
file(GLOB_RECURSE left LIST_DIRECTORIES true ${first}/*)
list(FILTER left INCLUDE REGEX "${first}/.*hbmprof")
if(NOT left STREQUAL "${first}/include/hbmprof;${first}/include/hbmprof/others.h")
  message(FATAL_ERROR "after the uninstallation there are: ${left}")
endif()

# The package must work wherever its prefix is put afterwards.
file(REMOVE_RECURSE ${first})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${first})
file(RENAME ${first} ${PREFIX})

# The package must not contain the path of a folder of this build.
file(GLOB package ${PREFIX}/lib/cmake/hbmprof/*.cmake ${PREFIX}/lib/pkgconfig/*.pc)
foreach(file ${package})
  file(READ ${file} text)
  foreach(folder ${SOURCE}/ ${first})
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()
