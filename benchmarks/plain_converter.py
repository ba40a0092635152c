#!/usr/bin/env python3
"""A straightforward converter to PyTorch's memory_viz, to compare `hbmprof convert --to memory-viz` with.

usage: plain_converter.py EVENTS FILE.pickle

Makes the events itself and reads no file: half of them are allocations, each followed by its free. Prints the processor
time and the largest resident memory.
"""
import pickle
import resource
import sys
import time


def made_events(count):
  stacks = [[{"filename": "llm_server", "line": 0, "name": name} for name in (f"layer{i}", "step", "main")]
            for i in range(64)]
  for i in range(count // 2):
    buffer = (0x7F8000000000 + (i % 4096 << 19), 4096 * (i % 64 + 1), stacks[i % 64], i)
    yield ("alloc", *buffer)
    yield ("free", *buffer)


def main(count, path):
  start = time.process_time()
  trace = []
  for kind, address, size, frames, us in made_events(count):
    actions = ("segment_alloc", "alloc") if kind == "alloc" else ("free_requested", "free_completed", "segment_free")
    for action in actions:
      trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "time_us": us})
  with open(path, "wb") as file:
    pickle.dump({"segments": [], "device_traces": [trace]}, file, protocol=4)
  mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
  print(f"{count} events: {time.process_time() - start:.2f} s of processor time, {mib} MiB")


main(int(sys.argv[1]), sys.argv[2])
