#!/usr/bin/env python3
"""Converts an XSpace file with XProf's own converter and prints what its Memory Profile shows, as JSON.

usage: xprof_memory.py PACKAGES FILE.xplane.pb
PACKAGES is the folder that has the Python package xprof. Only its C++ converter is used.
"""
import json
import os
import sys

sys.path.insert(0, sys.argv[1])
from xprof.convert import _pywrap_profiler_plugin as converter  # noqa: E402


def rows(part):
  """The breakdown table at the peak: (op, bytes, occurrences, region, shape, type)."""
  for active in part["activeAllocations"]:
    special = int(active["specialIndex"])
    data = (part["specialAllocations"][special] if special >= 0 else
            part["memoryProfileSnapshots"][int(active["snapshotIndex"])]["activityMetadata"])
    yield {"op": data["tfOpName"], "bytes": int(data["allocationBytes"]), "count": int(active["numOccurrences"]),
           "region": data["regionType"], "shape": data["tensorShape"], "type": data["dataType"]}


def main():
  # The converter caches its result beside the file if its options do not forbid it.
  data, _ = converter.xspace_to_tools_data([sys.argv[2]], "memory_profile", {"use_saved_result": False})
  profile = json.loads(data)
  memories = {}
  for name in profile.get("memoryIds", []):
    part = profile["memoryProfilePerAllocator"][name]
    summary = part["profileSummary"]
    memories[name] = {
        "peak_bytes": int(summary["peakStats"]["peakBytesInUse"]),
        "peak_time_ps": int(summary["peakStatsTimePs"]),
        "lifetime_peak_bytes": int(summary["peakBytesUsageLifetime"]),
        "capacity_bytes": int(summary["memoryCapacity"]),
        "timeline": [[int(point["timeOffsetPs"]), int(point["aggregationStats"]["heapAllocatedBytes"])]
                     for point in part["sampledTimelineSnapshots"]],
        "rows": list(rows(part)),
    }
  print(json.dumps(memories))


# The converter prints log lines to stderr; a test shows stderr only if it fails.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
main()
