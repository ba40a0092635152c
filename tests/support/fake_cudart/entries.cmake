# fake_cuda_entries(SOURCES OUT_HEADER OUT_SOURCE OUT_TABLE): the entries of the fake libcuda.so.1 have the form of those
# of NVIDIA's libcuda since 470: each exported function jumps or calls through a pointer of its own in writable data. The
# header renames the functions that the sources define. The source defines the exported functions; FAKE_CUDA_FORM is the
# first version of the driver with the form of the entries (entry_code.inc). The table has what cuGetProcAddress finds:
# the facts about NVIDIA's, as far as the sources define a function.
function(fake_cuda_entries sources header entries table)
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
  set(_facts ${PROJECT_SOURCE_DIR}/tests/inject/driver_facts.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_facts})
  file(STRINGS ${_facts} _lines REGEX "^cu[A-Za-z0-9]+ [02] ")
  # Of later drivers than those that were asked.
  list(APPEND _lines "cuGraphAddNode 0 13040 cuGraphAddNode_v3" "cuMemAlloc 0 99000 cuMemAlloc_v99")
  set(_declared)
  set(_rows)
  foreach(_line IN LISTS _lines)
    separate_arguments(_line)
    list(GET _line 3 _symbol)
    if(_symbol IN_LIST _names)
      list(GET _line 0 _name)
      list(GET _line 1 _flags)
      list(GET _line 2 _version)
      if(_flags EQUAL 2)
        set(_per_thread true)
      else()
        set(_per_thread false)
      endif()
      string(APPEND _declared "extern \"C\" void entry_${_symbol}() __asm__(\"${_symbol}\");\n")
      string(APPEND _rows
        "    {\"${_name}\", ${_version}, ${_per_thread}, reinterpret_cast<void*>(&entry_${_symbol})},\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${table} CONTENT "@_declared@const Entry kEntries[] = {\n@_rows@};\n" @ONLY)
  file(CONFIGURE OUTPUT ${entries} @ONLY CONTENT "
#include \"tests/support/fake_cudart/entry_calls.h\"
asm(R\"(
    .data
    .p2align 3
ended: .quad 0
    .macro entry name, words
    .section .data.rel.local, \"aw\"
    .p2align 3
slot_\\name: .quad )\" FAKE_CUDA_TARGET R\"(\\name
    .text
)\" FAKE_CUDA_NOTE R\"(
    .p2align 4
    .globl \\name
    .type \\name, %function
    .hidden fake_impl_\\name
\\name:)\"
#include \"tests/support/fake_cudart/entry_code.inc\"
R\"(
    .size \\name, .-\\name
    .endm
@_entries@)\" FAKE_CUDA_NOTES_END);
")
endfunction()
