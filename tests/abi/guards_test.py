#!/usr/bin/env python3
"""Checks that no variable of the library has a guard for its initialization.

usage: guards_test.py LIBRARY...

A thread that initializes a static variable of a function holds its guard. If the process forks then, the child waits for
ever at its first use of the variable. LockFreeLazy and Lazy of src/base have no guard.
"""

import re
import subprocess
import sys

problems = []
for library in sys.argv[1:]:
  names = subprocess.run(["nm", "-C", "--defined-only", library], check=True, capture_output=True, text=True).stdout
  if not re.search(" [tT] hbmprof", names):
    problems.append(f"{library}: has no symbols")
  problems += [f"{library}: {name}" for name in re.findall(r"guard variable for hbmprof.*", names)]
if problems:
  sys.exit("\n".join(problems))
print(f"{len(sys.argv) - 1} libraries without guards")
