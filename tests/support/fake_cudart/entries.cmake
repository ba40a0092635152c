# fake_cuda_entries(SOURCES OUT_HEADER OUT_SOURCE): the entries of the fake libcuda.so.1 have the form of those of
# NVIDIA's libcuda since 470: each exported function jumps through a pointer of its own in writable data. The header
# renames the functions that the sources define; the source defines the exported functions.
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
    string(APPEND _entries "entry ${_name}\n")
  endforeach()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(_code "
    adrp x16, ended
    mov w17, #0xba00
    movk w17, #0x321c, lsl #16
    ldr w16, [x16, :lo12:ended]
    cmp w16, w17
    b.eq 1f
    adrp x16, slot_\\name
    ldr x16, [x16, :lo12:slot_\\name]
    br x16
1:  mov w0, #4
    ret")
  else()
    set(_code "
    cmpl $0x321cba00, ended(%rip)
    je 1f
    jmp *slot_\\name(%rip)
1:  movl $4, %eax
    ret")
  endif()
  file(CONFIGURE OUTPUT ${header} CONTENT "@_defines@" @ONLY)
  # The rows of fake_cuda_entry: the function and the exported function.
  file(CONFIGURE OUTPUT ${entries} @ONLY CONTENT "asm(R\"(
    .data
    .p2align 3
ended: .quad 0
    .macro entry name
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
\\name: @_code@
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
