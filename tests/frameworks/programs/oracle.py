"""moment(name): compares hbmprof's profile of this process with what PyTorch says. Imported before the first tensor, so
that PyTorch's history has every line."""
import collections
import os

import torch
from comparison import of_hbmprof, own_line, write

# An NPU, if the program has imported torch_npu.
device = getattr(torch, "npu", torch.cuda)

# The backend cudaMallocAsync has no history, and counts neither blocks nor what was ever allocated.
HAS_HISTORY = "cudaMallocAsync" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
if HAS_HISTORY and device.is_available():
    device.memory._record_memory_history(max_entries=1_000_000, stacks="python")


def of_pytorch():
    stats = device.memory_stats()
    theirs = {"bytes": device.memory_allocated(), "reserved": device.memory_reserved(),
              "peak": device.max_memory_allocated()}
    if not HAS_HISTORY:
        return theirs
    lines = collections.Counter()
    for segment in device.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames = [(f["name"], f["filename"], f["line"]) for f in block.get("frames", ())]
                lines[own_line(frames)] += block["size"]
    return {**theirs, "blocks": stats["allocation.all.current"], "allocated": stats["allocated_bytes.all.allocated"],
            "lines": lines}


def moment(name, without=()):
    """`without`: what is not compared."""
    device.synchronize()
    # Threads of the framework may free memory meanwhile.
    for _ in range(5):
        theirs = of_pytorch()
        ours = of_hbmprof("pytorch")
        if theirs == of_pytorch():
            break
    write(name, {key: value for key, value in theirs.items() if key not in without}, ours)
