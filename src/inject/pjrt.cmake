# What is loaded into other people's programs: self-contained, so that nothing of it meets theirs. Made from the static
# library, whose symbols are hidden.
if(BUILD_SHARED_LIBS)
  message(STATUS "hbmprof: with BUILD_SHARED_LIBS libhbmprof_pjrt.so is not built: it is made from the static library")
  return()
endif()

hbmprof_injected_library(hbmprof_pjrt exports_pjrt_plugin.map pjrt_plugin.cc)
