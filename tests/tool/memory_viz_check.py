#!/usr/bin/env python3
"""Reads a snapshot of PyTorch's memory_viz as the viewer does, and prints what it shows, as JSON.

usage: memory_viz_check.py FILE

Fails if the pickle has an opcode that the viewer's reader does not know. Like the viewer, goes backwards through the
events, from the segments at the end. Fails if an event does not fit the state.
"""
import json
import pickle
import pickletools
import sys

OPCODES = set("""PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET EMPTY_DICT DICT SETITEM SETITEMS
EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
BINFLOAT SHORT_BINUNICODE BINUNICODE""".split())
MAX_EXACT = 1 << 53


class Plain(pickle.Unpickler):
  def find_class(self, module, name):
    raise ValueError(f"the snapshot has the class {module}.{name}")


def check_numbers(value):
  if isinstance(value, int):
    assert abs(value) < MAX_EXACT, value


def check_frames(frames):
  for frame in frames:
    assert isinstance(frame["filename"], str) and isinstance(frame["name"], str) and isinstance(frame["line"], int)


class Device:
  """The state of a device, from the end backwards."""

  def __init__(self):
    self.segments = {}
    self.blocks = {}
    self.sites = {}  # innermost function of each block

  def segment_of(self, address):
    for start, size in self.segments.items():
      if start <= address < start + size:
        return start
    raise AssertionError(f"block {address:#x} lies in no segment")

  def map(self, start, size):
    """Like the viewer, joins adjacent segments."""
    for other, other_size in list(self.segments.items()):
      assert other + other_size <= start or start + size <= other, (hex(start), size)
      if other + other_size == start:
        start, size = other, other_size + size
      elif start + size == other:
        size += other_size
      else:
        continue
      del self.segments[other]
    self.segments[start] = size

  def unmap(self, start, size):
    segment = self.segment_of(start)
    end = segment + self.segments.pop(segment)
    assert start + size <= end, (hex(start), size)
    if segment < start:
      self.segments[segment] = start - segment
    if start + size < end:
      self.segments[start + size] = end - start - size

  def used(self):
    return sum(self.blocks.values())

  def reserved(self):
    return sum(self.segments.values())

  def check_blocks(self):
    for block, size in self.blocks.items():
      segment = self.segment_of(block)
      assert block + size <= segment + self.segments[segment], (hex(block), size)

  def undo(self, entry):
    action, size = entry["action"], entry["size"]
    if action == "free_completed":
      self.segment_of(entry["addr"])
      assert entry["addr"] not in self.blocks
      self.blocks[entry["addr"]] = size
      self.sites[entry["addr"]] = entry["frames"][0]["name"]
    elif action == "alloc":
      assert self.blocks.pop(entry["addr"]) == size, entry
    elif action == "segment_unmap":
      self.map(entry["addr"], size)
    elif action == "segment_map":
      self.unmap(entry["addr"], size)
      self.check_blocks()
    elif action == "segment_free":
      assert entry["addr"] not in self.segments
      self.segments[entry["addr"]] = size
    elif action == "segment_alloc":
      assert self.segments.pop(entry["addr"]) == size, entry
      for block in self.blocks:
        assert not entry["addr"] <= block < entry["addr"] + size, (entry, block)


def device_of(number, snapshot):
  device = Device()
  for segment in snapshot["segments"]:
    if segment["device"] != number:
      continue
    for key in ("address", "total_size", "allocated_size", "active_size", "stream"):
      check_numbers(segment[key])
    device.segments[segment["address"]] = segment["total_size"]
    check_frames(segment["frames"])
    at = segment["address"]
    for block in segment["blocks"]:
      assert block["address"] == at, block
      if block["state"] == "active_allocated":
        device.blocks[at] = block["size"]
        device.sites[at] = block["frames"][0]["name"]
      else:
        assert block["state"] == "inactive", block
      at += block["size"]
    assert at == segment["address"] + segment["total_size"], segment
  return device


def summary_of(number, snapshot):
  trace = snapshot["device_traces"][number]
  device = device_of(number, snapshot)
  end = [device.used(), device.reserved()]
  used, reserved = end
  peak, actions = [reserved, used, len(trace)], {}
  peak_blocks, peak_sites = dict(device.blocks), dict(device.sites)
  for i in range(len(trace) - 1, -1, -1):
    entry = trace[i]
    actions[entry["action"]] = actions.get(entry["action"], 0) + 1
    check_numbers(entry.get("addr", 0))
    check_frames(entry["frames"])
    if entry["action"] == "free_requested":
      assert trace[i + 1]["action"] == "free_completed" and trace[i + 1]["addr"] == entry["addr"]
    device.undo(entry)
    sign = {"alloc": -1, "free_completed": 1}.get(entry["action"], 0)
    used += sign * entry["size"]
    sign = {"segment_alloc": -1, "segment_map": -1, "segment_free": 1, "segment_unmap": 1}.get(entry["action"], 0)
    reserved += sign * entry["size"]
    # All events of one change have the same time. A peak is the state after all of them. Of states with as much reserved
    # memory, it is the one with the most blocks, and the first of equal ones.
    if (i == 0 or trace[i - 1]["time_us"] != entry["time_us"]) and [reserved, used] >= peak[:2]:
      peak = [reserved, used, i]
      peak_blocks, peak_sites = dict(device.blocks), dict(device.sites)
  assert [used, reserved] == [device.used(), device.reserved()]
  holders = {}
  for address, size in peak_blocks.items():
    holders[peak_sites[address]] = holders.get(peak_sites[address], 0) + size
  times = [entry["time_us"] for entry in trace]
  assert times == sorted(times)
  return {"entries": len(trace), "actions": actions, "start": [used, reserved], "end": end, "peak_reserved": peak[0],
          "peak_time_us": trace[peak[2] - 1]["time_us"] if peak[2] else None, "holders": holders,
          "oom": [[entry["size"], entry["device_free"]] for entry in trace if entry["action"] == "oom"]}


def main():
  with open(sys.argv[1], "rb") as file:
    data = file.read()
  unknown = {opcode.name for opcode, _, _ in pickletools.genops(data)} - OPCODES
  assert not unknown, f"the viewer does not read {unknown}"
  with open(sys.argv[1], "rb") as file:
    snapshot = Plain(file).load()
  print(json.dumps([summary_of(i, snapshot) for i in range(len(snapshot["device_traces"]))]))


main()
