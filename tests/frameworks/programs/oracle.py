"""moment(name): compares hbmprof's profile of this process with what PyTorch says, and appends the comparison to the file
$FRAMEWORKS_RESULTS as one line of JSON. Imported before the first tensor, so that PyTorch's history has every line."""
import collections
import json
import os
import subprocess
import time

import torch
from profile_fields import Profile

PROGRAMS = os.path.dirname(os.path.abspath(__file__))
HAS_HISTORY = "cudaMallocAsync" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
if HAS_HISTORY and torch.cuda.is_available():
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
WITHOUT_FRAMES = "no Python frame"
OUTSIDE = "no frame of the program"


def own_line(frames):
    """The innermost of the frames (function, file, line) that is in a file of the programs."""
    for function, file, line in frames:
        if os.path.dirname(file) == PROGRAMS:
            return f"{function.rsplit('.')[-1]} {os.path.basename(file)}:{line}"
    return OUTSIDE if frames else WITHOUT_FRAMES


def of_pytorch():
    stats = torch.cuda.memory_stats()
    lines = collections.Counter()
    if HAS_HISTORY:
        for segment in torch.cuda.memory._snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    frames = [(f["name"], f["filename"], f["line"]) for f in block.get("frames", ())]
                    lines[own_line(frames)] += block["size"]
    # The backend cudaMallocAsync has no history, and counts neither blocks nor what was ever allocated.
    return {"bytes": torch.cuda.memory_allocated(), "blocks": stats["allocation.all.current"] if HAS_HISTORY else None,
            "reserved": torch.cuda.memory_reserved(),
            "allocated": stats["allocated_bytes.all.allocated"] if HAS_HISTORY else None,
            "peak": torch.cuda.max_memory_allocated(), "lines": lines}


def of_hbmprof():
    path = f"{os.environ['FRAMEWORKS_RESULTS']}.{os.getpid()}.{time.monotonic_ns()}.pb.gz"
    subprocess.run([os.environ["FRAMEWORKS_COMMAND"], "dump", str(os.getpid()), "-o", path], check=True)
    found = collections.Counter()
    lines = collections.Counter()
    for frames, values, labels in Profile(path).rows():
        allocator, kind = labels.get("allocator"), labels.get("kind")
        if allocator == "cudaMallocAsync":
            found["reserved"] += values["inuse_space"]
        elif allocator != "pytorch":
            continue
        else:
            found["reserved"] += values["inuse_space"]
            if kind != "device":
                continue
        found["bytes"] += values["inuse_space"]
        found["blocks"] += values["inuse_objects"]
        found["allocated"] += values["alloc_space"]
        found["peak"] += values["peak_space"]
        if values["inuse_space"] and HAS_HISTORY:
            python = [frame for frame in frames if frame[1].endswith(".py")]
            lines[own_line(python)] += values["inuse_space"]
    return {**{key: found[key] for key in ("bytes", "blocks", "reserved", "allocated", "peak")}, "lines": lines}


def moment(name):
    torch.cuda.synchronize()
    # Threads of the framework may free memory meanwhile.
    for _ in range(5):
        theirs = of_pytorch()
        ours = of_hbmprof()
        if theirs == of_pytorch():
            break
    row = {"moment": name, "process": os.getpid(), "pytorch": theirs, "hbmprof": ours}
    with open(os.environ["FRAMEWORKS_RESULTS"], "a") as file:
        file.write(json.dumps(row) + "\n")
