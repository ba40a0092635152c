include(CMakeFindDependencyMacro)
find_dependency(hbmprof)
include(${CMAKE_CURRENT_LIST_DIR}/parentTargets.cmake)
