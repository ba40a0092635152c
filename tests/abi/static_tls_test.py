#!/usr/bin/env python3
"""Checks that each library needs little of the static TLS block, which all libraries of a process share. The C library
reserves about 1,700 bytes of it for libraries that are loaded later.

usage: static_tls_test.py LIBRARY...
"""

import re
import subprocess
import sys

MAX_BYTES = 512


def main():
  problems = []
  for library in sys.argv[1:]:
    headers = subprocess.run(["readelf", "-lW", library], check=True, capture_output=True, text=True).stdout
    sizes = re.findall(r"^ +TLS +\S+ +\S+ +\S+ +\S+ +(0x[0-9a-f]+)", headers, flags=re.MULTILINE)
    if len(sizes) != 1:
      problems.append(f"{library} has {len(sizes)} TLS segments, not 1")
    elif int(sizes[0], 16) > MAX_BYTES:
      problems.append(f"{library} needs {int(sizes[0], 16)} bytes of static TLS, more than {MAX_BYTES}")
  sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
  main()
