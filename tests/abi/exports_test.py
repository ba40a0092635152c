#!/usr/bin/env python3
"""Checks what the shared library exports, and how the C interface's structs begin.

usage: exports_test.py SHARED_LIBRARY STATIC_LIBRARY C_HEADER
"""

import re
import subprocess
import sys


def symbols(*nm_arguments):
  """Returns (type, demangled name) of each symbol."""
  output = subprocess.run(["nm", "-C", "--defined-only", *nm_arguments], check=True, capture_output=True, text=True)
  return {tuple(line.split(" ", 2)[1:]) for line in output.stdout.splitlines() if re.match("[0-9a-f]+ . ", line)}


def is_public(name):
  subject = re.sub(r"^(vtable|typeinfo|typeinfo name) for ", "", name)
  if subject.startswith("hbmprof::"):
    return not subject.startswith("hbmprof::internal::")
  return re.fullmatch("hbmprof_(?!internal_)[a-z_]+", subject) is not None


def main():
  shared, static, header = sys.argv[1:]
  exported = {name for _, name in symbols("-D", shared)}
  problems = [f"{shared} exports {name}, which is not public" for name in exported if not is_public(name)]
  # Strong definitions: functions that public headers declare, or functions that were left in a public namespace.
  for kind, name in symbols("-g", static):
    if kind in "TDBR" and is_public(name) and name not in exported:
      problems.append(f"{name} is not exported: see src/api/public/exported.h, or move it to hbmprof::internal")

  with open(header, encoding="utf-8") as file:
    text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
  structs = re.findall(r"struct\s+(\w+)\s*\{\s*([^;]*);", text)
  if not structs:
    problems.append(f"no struct was found in {header}")
  for name, first in structs:
    if first != "size_t struct_size":
      problems.append(f"{header}: {name} begins with '{first}', not with 'size_t struct_size'")

  print(f"{len(exported)} exported names, {len(structs)} C structs")
  if problems:
    sys.exit("\n".join(sorted(problems)))


if __name__ == "__main__":
  main()
