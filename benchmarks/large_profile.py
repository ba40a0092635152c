#!/usr/bin/env python3
"""Writes a profile of many samples, for measurements of the command.

usage: benchmarks/large_profile.py SAMPLES FILE

There are 20,000 functions, each with one location, and stacks of 8 to 24 frames below 50 outermost functions. Needs
protoc. Example: benchmarks/large_profile.py 100000 large.pb.gz; time hbmprof top large.pb.gz
"""

import gzip
import os
import random
import subprocess
import sys

PROTO = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "proto")
FUNCTIONS = 20000


def main():
  samples, path = int(sys.argv[1]), sys.argv[2]
  strings = [""]

  def text(value):
    strings.append(value)
    return len(strings) - 1

  lines = []
  for name, unit in (("inuse_objects", "count"), ("inuse_space", "bytes"), ("alloc_objects", "count"),
                     ("alloc_space", "bytes")):
    lines.append(f"sample_type {{type: {text(name)} unit: {text(unit)}}}")
  device, gpu = text("device"), text("GPU:0")
  chooser = random.Random(5)
  for i in range(samples):
    stack = [chooser.randrange(FUNCTIONS)]
    stack += [(7 * i + 131 * k) % FUNCTIONS for k in range(chooser.randint(6, 22))]
    stack.append(chooser.randrange(50))
    objects, size = chooser.randrange(1, 50), chooser.randrange(1, 1 << 24)
    ids = " ".join(f"location_id: {location + 1}" for location in stack)
    values = " ".join(f"value: {value}" for value in (objects, size, 3 * objects, 3 * size))
    lines.append(f"sample {{{ids} {values} label {{key: {device} str: {gpu}}}}}")
  for i in range(1, FUNCTIONS + 1):
    name, file = text(f"app::Function{i}(int, Tensor const&)"), text(f"src/file{i % 500}.cc")
    lines.append(f"location {{id: {i} address: {8192 + 16 * i} line {{function_id: {i} line: {i % 900 + 1}}}}}")
    lines.append(f"function {{id: {i} name: {name} system_name: {name} filename: {file}}}")
  lines += [f'string_table: "{value}"' for value in strings]
  lines.append("default_sample_type: 3 time_nanos: 1700000000000000000")
  made = subprocess.run(["protoc", f"-I{PROTO}", "--encode=hbmprof.pprof.Profile", "profile.proto"], check=True,
                        input="\n".join(lines).encode(), capture_output=True)
  with open(path, "wb") as file:
    file.write(gzip.compress(made.stdout, 1))


if __name__ == "__main__":
  main()
