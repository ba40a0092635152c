"""moment(name): compares hbmprof's profile of this process with what PyTorch says. Imported before the first tensor, so
that PyTorch's history has every line."""
import collections
import os

import torch
from comparison import of_hbmprof, own_line, write

# The backend cudaMallocAsync has no history, and counts neither blocks nor what was ever allocated.
HAS_HISTORY = "cudaMallocAsync" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
if HAS_HISTORY and torch.cuda.is_available():
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")


def of_pytorch():
    stats = torch.cuda.memory_stats()
    theirs = {"bytes": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
              "peak": torch.cuda.max_memory_allocated()}
    if not HAS_HISTORY:
        return theirs
    lines = collections.Counter()
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames = [(f["name"], f["filename"], f["line"]) for f in block.get("frames", ())]
                lines[own_line(frames)] += block["size"]
    return {**theirs, "blocks": stats["allocation.all.current"], "allocated": stats["allocated_bytes.all.allocated"],
            "lines": lines}


def moment(name, without=()):
    """`without`: what is not compared."""
    torch.cuda.synchronize()
    # Threads of the framework may free memory meanwhile.
    for _ in range(5):
        theirs = of_pytorch()
        ours = of_hbmprof("pytorch")
        if theirs == of_pytorch():
            break
    write(name, {key: value for key, value in theirs.items() if key not in without}, ours)
