# The files that `cmake --install` installs, and the packages that find_package(hbmprof) and pkg-config find.
include(CMakePackageConfigHelpers)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hbmprof)

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/hbmprof)
install(DIRECTORY deploy/prometheus deploy/grafana DESTINATION ${CMAKE_INSTALL_DATADIR}/hbmprof/deploy)
install(FILES skills/hbmprof/SKILL.md DESTINATION ${CMAKE_INSTALL_DATADIR}/hbmprof/skills/hbmprof)
# Programs load these libraries by their paths, so they are no part of the CMake package.
install(TARGETS hbmprof_pjrt hbmprof_c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/hbmprof)
if(HBMPROF_PORTABLE)
  # The licences and the list of the libraries that are linked statically.
  foreach(_content notices:NOTICES sbom:hbmprof.cdx.json)
    string(REGEX MATCH "(.*):(.*)" _ ${_content})
    install(CODE "execute_process(COMMAND python3 \"${PROJECT_SOURCE_DIR}/scripts/contents.py\" ${CMAKE_MATCH_1}
      \"${CMAKE_SYSROOT}/\" ${PROJECT_VERSION} COMMAND_ERROR_IS_FATAL ANY OUTPUT_FILE
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/hbmprof/${CMAKE_MATCH_2}\")")
  endforeach()
endif()
if(HBMPROF_PORTABLE OR SKBUILD)
  # Not the libraries for C++ programs: abseil's classes are a part of their interface, so they fit only the system that
  # built them. C programs load libhbmprof_c.so.
  install(FILES include/hbmprof/c_api.h include/hbmprof/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hbmprof)
  return()
endif()
install(TARGETS hbmprof hbmprof_shared hbmprof_simulated EXPORT hbmprofTargets)
install(EXPORT hbmprofTargets NAMESPACE hbmprof:: DESTINATION ${_package_dir})
install(DIRECTORY include/hbmprof DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "cuda.h" EXCLUDE)

# The CUDA part is an export set of its own, so that a machine without the toolkit can use the rest.
if(TARGET hbmprof_cuda)
  install(TARGETS hbmprof_cuda EXPORT hbmprofCudaTargets)
  install(EXPORT hbmprofCudaTargets NAMESPACE hbmprof:: DESTINATION ${_package_dir})
  install(FILES include/hbmprof/cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hbmprof)
endif()

# hbmprof::hbmprof is one of the two libraries.
set(_kind static)
if(BUILD_SHARED_LIBS)
  set(_kind shared)
endif()
configure_package_config_file(cmake/hbmprofConfig.cmake.in ${PROJECT_BINARY_DIR}/hbmprofConfig.cmake
  INSTALL_DESTINATION ${_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hbmprofConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hbmprofConfig.cmake ${PROJECT_BINARY_DIR}/hbmprofConfigVersion.cmake
  cmake/FindLibDeflate.cmake cmake/FindLibElf.cmake cmake/FindLibIberty.cmake
  cmake/hbmprof_find_library.cmake
  DESTINATION ${_package_dir})

# The files of pkg-config. Abseil's packages have the names of its targets. The installed folders may be moved together.
get_target_property(_needed hbmprof LINK_LIBRARIES)
list(FILTER _needed INCLUDE REGEX "^absl::")
list(REMOVE_DUPLICATES _needed)
list(REMOVE_ITEM _needed absl::status absl::statusor)
list(TRANSFORM _needed REPLACE "^absl::" "absl_")
list(JOIN _needed ", " _private_absl)
set(_pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH _pc_prefix ${_pc_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" _pc_prefix ${_pc_prefix})
file(RELATIVE_PATH _pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH _pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
foreach(_package hbmprof hbmprof-c hbmprof-simulated)
  configure_file(cmake/${_package}.pc.in ${PROJECT_BINARY_DIR}/${_package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${_package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall
    COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
      -P ${CMAKE_CURRENT_LIST_DIR}/hbmprof_uninstall.cmake
    COMMENT "Removing what was installed last" VERBATIM)
endif()
