#!/usr/bin/env python3
"""Writes assembly for many small functions with C++ names and unwinding rules, for dump_bench.

usage: generate_functions.py COUNT OUTPUT.s

Each function is void(Descent*): it moves the cursor of the Descent to the next function, and calls the function at
which the cursor was. The table `hbmprof_generated_functions` has the addresses of all functions. The output is
assembly, because a compiler needs a millisecond for each function. x86-64 only.
"""

import sys

FUNCTION = """\
\t.type {name}, @function
{name}:
\t.cfi_startproc
\tsubq ${frame}, %rsp
\t.cfi_adjust_cfa_offset {frame}
\tmovq (%rdi), %rax
\tleaq 8(%rax), %rdx
\tmovq %rdx, (%rdi)
\tcall *(%rax)
\taddq ${frame}, %rsp
\t.cfi_adjust_cfa_offset -{frame}
\tret
\t.cfi_endproc
\t.size {name}, .-{name}
"""


def mangled(i):
  """model::layerNN::FunctionNN<model::Tensor<float, N>>(Descent*)."""
  layer = f"layer{i // 100}"
  function = f"{('Attention', 'FeedForward', 'Embedding', 'Normalize')[i % 4]}{i}"
  return (f"_ZN5model{len(layer)}{layer}{len(function)}{function}"
          f"INS_6TensorIfLi{i % 7}EEEEEvP7Descent")


def main():
  count, output = int(sys.argv[1]), sys.argv[2]
  with open(output, "w", encoding="utf-8") as file:
    file.write("\t.text\n")
    for i in range(count):
      file.write(FUNCTION.format(name=mangled(i), frame=8 + 16 * (i % 6)))
    file.write('\t.section .data.rel.ro,"aw"\n\t.balign 8\n'
               "\t.globl hbmprof_generated_functions\n\t.hidden hbmprof_generated_functions\n"
               "hbmprof_generated_functions:\n")
    for i in range(count):
      file.write(f"\t.quad {mangled(i)}\n")
    file.write('\t.section .note.GNU-stack,"",@progbits\n')


if __name__ == "__main__":
  main()
