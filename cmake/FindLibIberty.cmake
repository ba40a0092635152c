# Finds GNU libiberty: LibIberty::LibIberty. Installed with the package, since a static hbmprof's consumers link it too.
include(${CMAKE_CURRENT_LIST_DIR}/hbmprof_find_library.cmake)
hbmprof_find_library(LibIberty demangle.h iberty libiberty)
