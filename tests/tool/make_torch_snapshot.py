#!/usr/bin/env python3
"""Writes a snapshot as torch.cuda.memory._dump_snapshot of a release of PyTorch does, and prints what it contains.

usage: make_torch_snapshot.py FILE RELEASE [KEY=VALUE...]

RELEASE is one of 2.1, 2.2, 2.8, 2.15: each has keys that the ones before it lack. The contents come from a small
caching allocator with a seed, which counts its own numbers. The options and their defaults:

  events=400      calls of the allocator
  lost=0          entries that the ring of the trace has lost at its beginning
  expandable=0    1: segments grow and shrink in pieces
  devices=1       the last of them is the one that is used by every second call
  protocol=4      of the pickle
  trace=1         0: without a trace, as without _record_memory_history
  oom=1           0: no allocation fails
  metadata=1      0: no user_metadata
  cpp=0           1: with frames of C++, as PyTorch 2.15 writes them: binaries, and the offsets in them

The output is JSON, a list of devices: the bytes reserved and requested at the end, the number of blocks at the end and
their bytes by the innermost function, the number of entries before any is lost, the most bytes reserved in the trace,
and the most bytes requested while so much was reserved.
"""
import json
import pickle
import random
import sys

RELEASES = ("2.1", "2.2", "2.8", "2.15")
MIB = 1 << 20
GRANULE = 2 * MIB


def frame(name, file, line):
  return {"name": name, "filename": file, "line": line}


# Frames are shared objects, innermost first; each traceback is a list of its own.
MAIN = frame("main", "/srv/train.py", 90)
PYTORCH = frame("empty_strided", "/venv/lib/python3.11/site-packages/torch/_ops.py", 12)
SITES = [[PYTORCH, frame("forward", "/srv/model.py", 31), MAIN],
         [PYTORCH, frame("attention", "/srv/model.py", 57), frame("forward", "/srv/model.py", 33), MAIN],
         [frame("c10::cuda::CUDACachingAllocator::malloc", "??", 0), frame("load_weights", "/srv/load.py", 8), MAIN],
         [frame("recurse", "/srv/tree.py", 5), frame("recurse", "/srv/tree.py", 5), MAIN]]
LIBRARIES = "/venv/lib/python3.11/site-packages/torch/lib/"
CPP_INSIDE = [frame("torch::CapturedTraceback::gather(bool, bool, bool)", LIBRARIES + "libtorch_cpu.so", 107817241),
              frame("??", LIBRARIES + "libtorch_cuda.so", 68989582),
              frame("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0", 1038786)]
CPP_OUTSIDE = [frame("??", "/lib/x86_64-linux-gnu/libc.so.6", 160329), frame("_start", "/usr/bin/python3.11", 4224)]
CPP_BACKWARD = [CPP_INSIDE[1],
                frame("torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor, "
                      "std::allocator<at::Tensor> >&&)", LIBRARIES + "libtorch_cpu.so", 12)]
FREE_SITE = [frame("step", "/srv/train.py", 71), MAIN]


class Device:
  """A caching allocator: first fit in segments, the largest unused segment is returned from time to time."""

  def __init__(self, number, options):
    self.number, self.options = number, options
    self.base = (0x7F << 40) + (number << 36)
    self.segments = {}  # address: [size, frames]; of an expandable one its mapped ranges, each one granule or more
    self.blocks = {}  # address: (room, requested, frames, state)
    self.trace = []
    self.states = []  # after each entry: reserved, requested
    self.next_segment = self.base

  def reserved(self):
    return sum(size for size, _ in self.segments.values())

  def live(self):
    return [(at, block) for at, block in sorted(self.blocks.items()) if block[3] == "active_allocated"]

  def requested(self):
    return sum(block[1] for _, block in self.live())

  def record(self, action, address, size, frames, time, **more):
    entry = {"action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": 0}
    if RELEASES.index(self.options["release"]) >= 1:
      entry["time_us"] = time
    if RELEASES.index(self.options["release"]) >= 2:
      entry["compile_context"] = "N/A"
      entry["user_metadata"] = more.get("user_metadata", "")
    if RELEASES.index(self.options["release"]) >= 3:
      entry["pool_id"] = (0, 0)
    if frames:
      entry["frames"] = list(frames)
    self.trace.append(entry)
    self.states.append((self.reserved(), self.requested()))

  def find_room(self, room):
    """Returns a free address in the segments; None if there is none."""
    for at, size, _ in self.ranges():
      end = at + size
      for other, block in sorted(self.blocks.items()):
        if at <= other < end:
          if other - at >= room:
            return at
          at = other + block[0]
      if end - at >= room:
        return at
    return None

  def alloc(self, requested, frames, time, metadata):
    room = (requested + 511) // 512 * 512
    address = self.find_room(room)
    if address is None:
      size = (room + GRANULE - 1) // GRANULE * GRANULE
      address = self.next_segment
      self.next_segment += size if self.options["expandable"] else size + 4 * GRANULE
      self.segments[address] = [size, frames]
      self.record("segment_map" if self.options["expandable"] else "segment_alloc", address, size, frames, time)
    self.blocks[address] = (room, requested, frames, "active_allocated")
    self.record("alloc", address, requested, frames, time, user_metadata=metadata)

  def free(self, address, time, waits):
    room, requested, frames, _ = self.blocks[address]
    self.blocks[address] = (room, requested, frames, "active_pending_free")
    self.record("free_requested", address, requested, FREE_SITE, time)
    if not waits:
      self.complete(address, time)

  def complete(self, address, time):
    requested = self.blocks.pop(address)[1]
    self.record("free_completed", address, requested, FREE_SITE, time)

  def trim(self, time):
    """Returns unused memory: whole segments, or every second granule of the pieces of an expandable one."""
    for at, (size, frames) in sorted(self.segments.items()):
      if any(at < other + block[0] and other < at + size for other, block in self.blocks.items()):
        continue
      if not self.options["expandable"]:
        del self.segments[at]
        self.record("segment_free", at, size, FREE_SITE, time)
      elif size > GRANULE:
        self.segments[at] = [GRANULE, frames]
        if size > 2 * GRANULE:
          self.segments[at + 2 * GRANULE] = [size - 2 * GRANULE, frames]
        self.record("segment_unmap", at + GRANULE, GRANULE, FREE_SITE, time)

  def ranges(self):
    """The segments as PyTorch reports them: adjacent pieces of an expandable one are one segment."""
    ranges = []
    for at, (size, frames) in sorted(self.segments.items()):
      if self.options["expandable"] and ranges and ranges[-1][0] + ranges[-1][1] == at:
        ranges[-1][1] += size
      else:
        ranges.append([at, size, frames])
    return ranges

  def segment(self, address, size, frames):
    blocks, at = [], address

    def add(room, requested, state, frames):
      blocks.append({"address": at, "size": room, "requested_size": requested, "state": state, "frames": list(frames)})

    for start, (room, requested, stack, state) in sorted(self.blocks.items()):
      if address <= start < address + size:
        if start > at:
          add(start - at, 0, "inactive", [])
        at = start
        add(room, requested, state, stack)
        at += room
    if at < address + size:
      add(address + size - at, 0, "inactive", [])
    active = [block for block in blocks if block["state"] != "inactive"]
    segment = {"device": self.number, "address": address, "total_size": size,
               "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
               "active_size": sum(b["size"] for b in active),
               "requested_size": sum(b["requested_size"] for b in active),
               "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
               "is_expandable": bool(self.options["expandable"]), "frames": list(frames)}
    segment["blocks"] = blocks
    return segment

  def summary(self):
    holders = {}
    for _, block in self.live():
      holders[block[2][0]["name"]] = holders.get(block[2][0]["name"], 0) + block[1]
    summary = {"reserved": self.reserved(), "requested": self.requested(), "holders": holders,
               "live": len(self.live()), "entries": len(self.trace)}
    kept = self.states[self.options["lost"]:] if self.options["trace"] else []
    start = self.states[self.options["lost"] - 1] if self.options["lost"] and self.states else (0, 0)
    states = [start] + kept if self.options["trace"] else [(self.reserved(), self.requested())]
    summary["peak_reserved"], summary["peak_requested"] = max(states)
    return summary


def main():
  path, release = sys.argv[1:3]
  options = {"events": 400, "lost": 0, "expandable": 0, "devices": 1, "protocol": 4, "trace": 1, "oom": 1,
             "metadata": 1, "cpp": 0, "release": release}
  for argument in sys.argv[3:]:
    key, value = argument.split("=")
    assert key in options, key
    options[key] = int(value)
  assert release in RELEASES, release
  rng = random.Random(7)
  devices = [Device(i, options) for i in range(options["devices"])]
  sites = [CPP_INSIDE + site + CPP_OUTSIDE for site in SITES] + [CPP_BACKWARD] if options["cpp"] else SITES
  time = 1_700_000_000_000_000
  for call in range(options["events"]):
    time += rng.randrange(1, 20000)
    device = devices[-1] if call % 2 else devices[0]
    live = device.live()
    waiting = [at for at, block in device.blocks.items() if block[3] == "active_pending_free"]
    if waiting and rng.random() < 0.5:
      device.complete(waiting[0], time)
    elif live and rng.random() < 0.45:
      device.free(rng.choice(live)[0], time, waits=rng.random() < 0.2)
    elif rng.random() < 0.06:
      device.trim(time)
    else:
      requested = rng.choice((100, 4000, 300_000, 3 * MIB, 9 * MIB + 17))
      metadata = "step %d" % (call // 100) if options["metadata"] and rng.random() < 0.3 else ""
      device.alloc(requested, sites[rng.randrange(len(sites))], time, metadata)
  if options["oom"]:
    devices[0].record("oom", 3 * MIB, 1 << 40, sites[0], time)
  for device in devices:
    if RELEASES.index(release) >= 3:
      device.record("annotate", device.live()[0][0], 0, [], time, user_metadata="kv cache")
    device.record("snapshot", 0, 0, [], time)
  summaries = [device.summary() for device in devices]
  snapshot = {"segments": [device.segment(*one) for device in devices for one in device.ranges()],
              "device_traces": [device.trace[options["lost"]:] if options["trace"] else [] for device in devices]}
  if RELEASES.index(release) >= 1:
    setting = "expandable_segments:True" if options["expandable"] else ""
    snapshot["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": setting, "max_split_size": -1,
                                      "garbage_collection_threshold": 0.8,
                                      "expandable_segments": bool(options["expandable"]),
                                      "roundup_power2_divisions": {"1": 0, "2": 0}}
  if RELEASES.index(release) >= 2:
    snapshot["external_annotations"] = [{"device": 0, "time_us": time, "name": "ProfilerStep#1", "stage": "START"}]
  with open(path, "wb") as file:
    pickle.dump(snapshot, file, protocol=options["protocol"])
  print(json.dumps(summaries))


if __name__ == "__main__":
  main()
