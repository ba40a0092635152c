# fake_cuda_entries(SOURCES OUT_HEADER OUT_SOURCE): the entries of the fake libcuda.so.1 have the form of those of
# NVIDIA's libcuda since 470: each exported function jumps or calls through a pointer of its own in writable data. The
# header renames the functions that the sources define. The source defines the exported functions; FAKE_CUDA_FORM is the
# first version of the driver with the form of the entries (entry_code.inc).
function(fake_cuda_entries sources header entries)
  set(_names)
  foreach(_source IN LISTS sources)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_source})
    file(STRINGS ${_source} _lines REGEX "^(CUresult|int) cu[A-Z][A-Za-z0-9_]*\\(")
    foreach(_line IN LISTS _lines)
      string(REGEX REPLACE "^[A-Za-z]+ (cu[A-Za-z0-9_]+).*" "\\1" _name "${_line}")
      list(APPEND _names ${_name})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES _names)
  set(_defines)
  set(_entries)
  foreach(_name IN LISTS _names)
    string(APPEND _defines "#define ${_name} fake_impl_${_name}\n")
    set(_words 0)  # of the arguments on the stack
    if(_name MATCHES "^cuLibraryLoad")
      set(_words 2)
    elseif(_name MATCHES "^cuIpcOpenMemHandle")
      set(_words 8)
    endif()
    string(APPEND _entries "entry ${_name}, ${_words}\n")
  endforeach()
  file(CONFIGURE OUTPUT ${header} CONTENT "@_defines@" @ONLY)
  # The rows of fake_cuda_entry: the function and the exported function.
  file(CONFIGURE OUTPUT ${entries} @ONLY CONTENT "asm(R\"(
    .data
    .p2align 3
ended: .quad 0
    .macro entry name, words
    .section .data.rel.local, \"aw\"
    .p2align 3
slot_\\name: .quad fake_impl_\\name
    .section .data.rel.ro.local, \"aw\"
    .p2align 3
    .quad fake_impl_\\name, \\name
    .text
    .p2align 4
    .globl \\name
    .type \\name, %function
    .hidden fake_impl_\\name
\\name:)\"
#include \"tests/support/fake_cudart/entry_code.inc\"
R\"(
    .size \\name, .-\\name
    .endm
    .section .data.rel.ro.local, \"aw\"
    .p2align 3
    .globl fake_cuda_rows, fake_cuda_rows_end
    .hidden fake_cuda_rows, fake_cuda_rows_end
fake_cuda_rows:
@_entries@
    .section .data.rel.ro.local, \"aw\"
fake_cuda_rows_end:
    .text
)\");
")
endfunction()
