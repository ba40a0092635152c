"""What hbmprof says about this process, and the file of comparisons, $FRAMEWORKS_RESULTS, which gets a line of JSON each."""
import collections
import json
import os
import subprocess
import time

from profile_fields import Profile

PROGRAMS = os.environ.get("FRAMEWORKS_PROGRAMS") or os.path.dirname(os.path.abspath(__file__))
WITHOUT_FRAMES = "no Python frame"
OUTSIDE = "no frame of the program"


def own_line(frames):
    """The innermost of the frames (function, file, line) that is in a file of the programs."""
    for function, file, line in frames:
        if file.startswith(PROGRAMS + os.sep):
            return f"{function.rsplit('.')[-1]} {os.path.basename(file)}:{line}"
    return OUTSIDE if frames else WITHOUT_FRAMES


def of_hbmprof(framework):
    """The sums of the blocks of an allocator, `pytorch` or `tensorflow`, or those of the driver, None. PyTorch's backend
    cudaMallocAsync has blocks of the driver."""
    path = f"{os.environ['FRAMEWORKS_RESULTS']}.{os.getpid()}.{time.monotonic_ns()}.pb.gz"
    subprocess.run([os.environ["FRAMEWORKS_COMMAND"], "dump", str(os.getpid()), "-o", path], check=True)
    found = collections.Counter()
    lines = collections.Counter()
    for frames, values, labels in Profile(path).rows():
        allocator = labels.get("allocator")
        if allocator not in (framework, "cudaMallocAsync") or labels["kind"] not in ("device", "pool"):
            continue
        found["reserved"] += values["inuse_space"]
        if allocator == framework and labels.get("kind") != "device":
            continue
        found["bytes"] += values["inuse_space"]
        found["blocks"] += values["inuse_objects"]
        found["allocated"] += values["alloc_space"]
        found["peak"] += values["pool_peak_space" if allocator and allocator == framework else "peak_space"]
        if values["inuse_space"]:
            lines[own_line([frame for frame in frames if frame[1].endswith(".py")])] += values["inuse_space"]
    return {**{key: found[key] for key in ("bytes", "blocks", "reserved", "allocated", "peak")}, "lines": lines}


def write(moment, theirs, ours):
    row = {"moment": moment, "process": os.getpid(), "framework": theirs, "hbmprof": ours}
    with open(os.environ["FRAMEWORKS_RESULTS"], "a") as file:
        file.write(json.dumps(row) + "\n")
