#!/usr/bin/env python3
"""Writes the snapshot that a program prints as torch.cuda.memory._dump_snapshot does: torch_snapshot_program, or
torch_program of tests/inject.

usage: write_torch_snapshot.py FILE PROGRAM ARGUMENT...

As in PyTorch, frames are shared objects, and so are the lists of frames of one call stack. Prints "stats".
"""
import json
import os
import pickle
import subprocess
import sys


def main():
  printed = json.loads(subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, check=True).stdout)
  main_frame = {"name": "main", "filename": "/srv/train.py", "line": 10}
  frames = {name: {"name": name, "filename": "/srv/model.py", "line": 20} for name in set(printed["sites"])}
  stacks = [[frames[name], main_frame] for name in printed["sites"]]

  def converted(entry):
    context = entry.pop("context")
    for key in ("segment_pool_id", "pool_id"):
      if key in entry:
        entry[key] = tuple(entry[key])
    if context is not None:
      entry["frames"] = stacks[context]
    return entry

  for segment in printed["segments"]:
    converted(segment).setdefault("frames", [])
    for block in segment["blocks"]:
      converted(block).setdefault("frames", [])
  snapshot = {"segments": printed["segments"],
              "device_traces": [[converted(entry) for entry in trace] for trace in printed["device_traces"]],
              "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
                                     "max_split_size": -1},
              "external_annotations": []}
  with open(sys.argv[1], "wb") as file:
    pickle.dump(snapshot, file)
  print(json.dumps(printed["stats"]))


main()
