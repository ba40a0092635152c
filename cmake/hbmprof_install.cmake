# What `cmake --install` puts where, and the package that find_package(hbmprof) finds.
include(CMakePackageConfigHelpers)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hbmprof)

install(TARGETS hbmprof EXPORT hbmprofTargets)
install(EXPORT hbmprofTargets NAMESPACE hbmprof:: DESTINATION ${_package_dir})
install(DIRECTORY include/hbmprof DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "cuda.h" EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The CUDA part is an export set of its own, so that a machine without the toolkit can use the rest.
if(TARGET hbmprof_cuda)
  install(TARGETS hbmprof_cuda EXPORT hbmprofCudaTargets)
  install(EXPORT hbmprofCudaTargets NAMESPACE hbmprof:: DESTINATION ${_package_dir})
  install(FILES include/hbmprof/cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hbmprof)
endif()

# Loaded by its path, so no part of the package.
if(TARGET hbmprof_pjrt)
  install(TARGETS hbmprof_pjrt LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

configure_package_config_file(cmake/hbmprofConfig.cmake.in ${PROJECT_BINARY_DIR}/hbmprofConfig.cmake
  INSTALL_DESTINATION ${_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hbmprofConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hbmprofConfig.cmake ${PROJECT_BINARY_DIR}/hbmprofConfigVersion.cmake
  cmake/FindLibDeflate.cmake cmake/FindLibElf.cmake cmake/hbmprof_find_library.cmake
  DESTINATION ${_package_dir})
