# What the library needs from others. A project that this one is part of may bring targets of its own: those are taken.

# hbmprof_share_imported_targets(): what was found in this directory is seen in the whole build, because whoever links
# the library links it too.
macro(hbmprof_share_imported_targets)
  get_property(_imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(_target IN LISTS _imported)
    set_target_properties(${_target} PROPERTIES IMPORTED_GLOBAL ON)
  endforeach()
endmacro()

if(NOT TARGET Threads::Threads)
  find_package(Threads REQUIRED)
endif()
if(NOT TARGET absl::status)
  find_package(absl REQUIRED)
endif()
if(NOT TARGET ZLIB::ZLIB)
  find_package(ZLIB REQUIRED)
endif()
if(NOT TARGET LibElf::LibElf)
  find_package(LibElf REQUIRED)
endif()
if(NOT TARGET LibDeflate::LibDeflate)
  find_package(LibDeflate REQUIRED)
endif()
hbmprof_share_imported_targets()
