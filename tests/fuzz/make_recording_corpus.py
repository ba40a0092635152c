#!/usr/bin/env python3
"""Makes the corpus of recording_fuzz from recordings: each file itself, and its blocks in the form that the fuzzer takes
apart (type, length, number, contents).

usage: make_recording_corpus.py FOLDER RECORDING...
"""

import os
import struct
import sys
import zlib


def blocks(data):
  """Yields (type, count, contents) of each block."""
  at = 12
  while at + 32 <= len(data):
    _, kind, compressed, _, count, _, stored, _, _ = struct.unpack_from("<IBBHIIIqI", data, at)
    contents = data[at + 32:at + 32 + stored]
    at += 32 + stored
    yield kind, count, zlib.decompress(contents, -15) if compressed else contents


def main():
  folder, paths = sys.argv[1], sys.argv[2:]
  os.makedirs(folder, exist_ok=True)
  for path in paths:
    with open(path, "rb") as file:
      data = file.read()
    name = os.path.splitext(os.path.basename(path))[0]
    with open(os.path.join(folder, name + ".file"), "wb") as file:
      file.write(data)
    with open(os.path.join(folder, name + ".blocks"), "wb") as file:
      for kind, count, contents in blocks(data):
        if len(contents) < 65536:
          file.write(struct.pack("<BHB", kind, len(contents), count % 256) + contents)


if __name__ == "__main__":
  main()
