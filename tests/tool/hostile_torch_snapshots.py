#!/usr/bin/env python3
"""Writes pickles that are no snapshots of PyTorch, or that have wrong values, into a folder.

usage: hostile_torch_snapshots.py FOLDER [shared]

The output is a JSON object: the name of each file, and a text that the message about it must have; "" if the file must
be read. Nothing in a pickle is ever executed: those with code would create the file FOLDER/executed.

With "shared", the files are those whose lists contain one object many times. A reader that copied the object for each
time would need hours or all memory. The output is the bytes that are reserved and the bytes that are in use in each.
"""
import copy
import json
import os
import pickle
import struct
import sys

FRAME = {"name": "f", "filename": "f.py", "line": 1}
EVENT = {"action": "alloc", "addr": 0x1000, "size": 512, "stream": 0, "time_us": 5, "frames": [FRAME]}
BLOCK = {"address": 0x1000, "size": 1024, "requested_size": 512, "state": "active_allocated", "frames": [FRAME]}
SEGMENT = {"device": 0, "address": 0x1000, "total_size": 1024, "frames": [FRAME], "blocks": [BLOCK]}


class Payload:
  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mknod, (self.path,)


def snapshot(event=None, block=None, segment=None):
  segment = dict(SEGMENT, **(segment or {}))
  if block is not None:
    segment["blocks"] = [block]
  return {"segments": [segment], "device_traces": [[EVENT if event is None else event]]}


def with_value(entry, key, value):
  entry = copy.deepcopy(entry)
  entry[key] = value
  return entry


def write_shared(folder):
  """PyTorch lists each object once, so the second and later times count for nothing."""
  blocks = [{"size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": [FRAME]}
            for _ in range(20_000)]
  segment = dict(SEGMENT, total_size=1024 * len(blocks), blocks=blocks)
  trace = [dict(EVENT, addr=(1 << 40) + 512 * i, time_us=i + 1) for i in range(20_000)]
  apart = [dict(segment, address=segment["address"] + i * segment["total_size"]) for i in range(20_000)]
  files = {
      "segment_many_times": ({"segments": [segment] * 200_000, "device_traces": []}, 1),
      "segment_list_many_times": ({"segments": [segment], "device_traces": [], "again": [[segment] * 1000 for _ in range(1000)]}, 1),
      "blocks_shared": ({"segments": apart, "device_traces": []}, len(apart)),
      "block_many_times": ({"segments": [dict(segment, blocks=blocks + [BLOCK] * 1_000_000)], "device_traces": []}, 1),
      "trace_for_all_devices": ({"segments": [segment], "device_traces": [trace] * 1000}, 1),
      "event_many_times": ({"segments": [segment], "device_traces": [[EVENT] * 1_000_000]}, 1),
  }
  expected = {}
  for name, (value, segments) in files.items():
    with open(os.path.join(folder, name), "wb") as file:
      pickle.dump(value, file, protocol=4)
    expected[name] = [segments * segment["total_size"], 1000 * len(blocks)]
  print(json.dumps(expected))


def main():
  folder = sys.argv[1]
  if sys.argv[2:] == ["shared"]:
    return write_shared(folder)
  executed = os.path.join(folder, "executed")
  expected = {}

  def write(name, value, text):
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=4)
    with open(os.path.join(folder, name), "wb") as file:
      file.write(data)
    expected[name] = text

  # Code. `GLOBAL`, `STACK_GLOBAL`, `REDUCE`, `BUILD` and others are refused at the first of them.
  refused = "not one for plain data"
  for protocol in (2, 3, 4, 5):
    write(f"reduce{protocol}", pickle.dumps(Payload(executed), protocol=protocol), refused)
    inside = snapshot(event=with_value(EVENT, "user_metadata", Payload(executed)))
    write(f"inside{protocol}", pickle.dumps(inside, protocol=protocol), refused)
  write("global", b"\x80\x02cos\nmknod\n(X" + struct.pack("<I", len(executed)) + executed.encode() + b"tR.", refused)
  # All other instructions, each at the start, after two values, and after a list that has a mark.
  known = set(b"\x95.(N\x88\x89GKMJ\x8a\x8cX\x8d]})\x85\x86\x87taesu\x94qrhj\x80")
  for code in set(range(256)) - known:
    for name, before in (("first", b""), ("values", b"K\x01K\x02"), ("list", b"](K\x01")):
      write(f"code{code}{name}", b"\x80\x04" + before + bytes([code]) + b"\x01\x01\x01\x01\x01\x01\x01\x01.", refused)

  # Values of wrong types. True is not a number here.
  wrong = {"text": "x", "none": None, "list": [1], "negative": -1, "large": 1 << 63, "huge": 1 << 200, "float": 1.5,
           "true": True, "dictionary": {"a": 1}, "tuple": (1, 2), "integer": 3}
  numbers = ("text", "none", "list", "negative", "large", "huge", "float", "true", "dictionary", "tuple")
  no_text = tuple(name for name in wrong if name != "text")
  fields = [("event", EVENT, "addr", numbers), ("event", EVENT, "size", numbers), ("event", EVENT, "time_us", numbers),
            ("event", EVENT, "action", no_text), ("block", BLOCK, "size", numbers),
            ("block", BLOCK, "requested_size", numbers), ("block", BLOCK, "address", numbers),
            ("block", BLOCK, "state", no_text), ("segment", SEGMENT, "device", numbers),
            ("segment", SEGMENT, "address", numbers), ("segment", SEGMENT, "total_size", numbers)]
  frames = ("text", "list", "float", "true", "dictionary", "tuple", "integer")
  fields += [(kind, entry, "frames", frames) for kind, entry in
             (("event", EVENT), ("block", BLOCK), ("segment", SEGMENT))]
  for kind, entry, key, values in fields:
    for name in values:
      value = snapshot(**{kind: with_value(entry, key, wrong[name])})
      write(f"{kind}.{key}.{name}", value, f"'{key}' of a{'n' if kind == 'event' else ''} {kind} is not ")
  for name in set(wrong) - {"negative"}:
    if name not in ("text",):
      write(f"frame.name.{name}", snapshot(event=with_value(EVENT, "frames", [dict(FRAME, name=wrong[name])])),
            "'name' of a frame is not a text")
      write(f"frame.filename.{name}", snapshot(event=with_value(EVENT, "frames", [dict(FRAME, filename=wrong[name])])),
            "'filename' of a frame is not a text")
    if name not in ("integer", "large"):
      write(f"frame.line.{name}", snapshot(event=with_value(EVENT, "frames", [dict(FRAME, line=wrong[name])])),
            "'line' of a frame is not a whole number")
  for name in ("text", "none", "float", "dictionary", "integer", "list"):
    write(f"segments.{name}", {"segments": wrong[name], "device_traces": []}, "'segments' of the snapshot is not")
    write(f"traces.{name}", {"segments": [], "device_traces": wrong[name]}, "'device_traces' of the snapshot is not")
    write(f"root.{name}", wrong[name], "not a snapshot of PyTorch's memory")
    write(f"blocks.{name}", snapshot(segment={"blocks": wrong[name]}), "'blocks' of a segment is not a list of blocks")
  write("mixed", {"segments": [SEGMENT, BLOCK], "device_traces": []}, "'segments' of the snapshot is not")
  write("outside", snapshot(block=dict(BLOCK, address=0x10)), "lies outside of the segment")
  write("overlong", snapshot(segment={"blocks": [dict(BLOCK, address=0x1200)]}), "lies outside of the segment")
  pieces = [dict(EVENT, action="segment_map", addr=(1 << 40) + 512 * i) for i in range(20_000)]
  whole = dict(EVENT, action="segment_map", addr=1 << 40, size=512 * len(pieces))
  write("pieces_mapped_again", {"segments": [], "device_traces": [pieces + [whole] * 10_000]}, "overlap too often")
  write("segments_only", [SEGMENT], "the pickle has no 'segments'")
  write("no_action", snapshot(event={"addr": 1, "size": 2}), "'device_traces' of the snapshot is not")

  # What a correct file may have.
  write("good", snapshot(), "")
  write("annotate", snapshot(event={"action": "annotate", "addr": 0, "user_metadata": "x"}), "")
  write("unknown_action", snapshot(event={"action": "of a later release", "addr": "x"}), "")
  write("more_keys", dict(snapshot(event=dict(EVENT, more={"a": [1.5, (2, None)]})), extra=[{}, [], ()]), "")
  host = {"address": 0x7F0000000000, "size": 4096, "allocated": True, "active": True, "segment_pool_id": (0, 0)}
  write("host_memory", dict(snapshot(), host_segments=[host, dict(host, state="active_allocated", frames=[FRAME])],
                            host_traces=[EVENT]), "")
  write("no_frames", snapshot(event={"action": "alloc", "addr": 1, "size": 2}), "")
  write("empty", {"segments": [], "device_traces": []}, "")
  write("overlap", snapshot(segment={"blocks": [BLOCK, BLOCK][:1]}), "")
  same = {"segments": [SEGMENT, SEGMENT], "device_traces": [[EVENT, EVENT], [EVENT]]}
  write("same_twice", same, "")

  # Programs that no pickler writes.
  empty = b"}X\x08\0\0\0segments]s."
  write("one_by_one", b"\x80\x02" + empty, "")
  programs = {
      "no_start": (b"\x80\x04\x80\x04" + empty, "the start of a pickle"),
      "protocol9": (b"\x80\x05\x80\x09.", "the start of a pickle"),
      "stop_only": (b"\x80\x04.", "not a snapshot"),
      "two_values": (b"\x80\x04}}.", "not a snapshot"),
      "no_mark": (b"\x80\x04}K\x01K\x02u.", "the start of a container is missing"),
      "append_nothing": (b"\x80\x04a.", "is missing"),
      "append_to_number": (b"\x80\x04K\x01K\x02a.", "not a list"),
      "append_to_dictionary": (b"\x80\x04}K\x02a.", "not a list"),
      "set_in_list": (b"\x80\x04]K\x01K\x02s.", "not a dictionary"),
      "odd_items": (b"\x80\x04}(K\x01u.", "a key has no value"),
      "tuple_of_nothing": (b"\x80\x04\x87.", "an element of a container is missing"),
      "memoize_nothing": (b"\x80\x04\x94.", "the value for the memo is missing"),
      "memoize_mark": (b"\x80\x04(\x94.", "the value for the memo is missing"),
      "memoize_number": (b"\x80\x04K\x01\x94.", "a number is put into the memo"),
      "memo_gap": (b"\x80\x04]r\xff\xff\xff\xff.", "comes before smaller ones"),
      "memo_unknown": (b"\x80\x04j\xff\xff\xff\xff.", "the memo has no number 4294967295"),
      "list_in_itself": (b"\x80\x04]\x94h\0a.", "not a snapshot"),
      "dictionary_in_itself": (b"\x80\x04}\x94X\1\0\0\0ah\0s.", "not a snapshot"),
      "list_in_tuple_in_itself": (b"\x80\x04]\x94h\0\x85a.", "in use already"),
      "changed_after_use": (b"\x80\x04]\x94}X\1\0\0\0bh\0sh\0K\x01a.", "in use already"),
      "long_text": (b"\x80\x04X\xff\xff\xff\xffabc", "a text has 4294967295 bytes"),
      "very_long_text": (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc", "bytes"),
      "short_text": (b"\x80\x04X\x10\0\0\0abc", "the file ends in the middle"),
      "short_number": (b"\x80\x04J\x01", "the file ends in the middle"),
      "short_long": (b"\x80\x04\x8a\x09\x01", "the file ends in the middle"),
      "marks": (b"\x80\x04" + b"(" * (17 << 20), "the stack of the pickle is too large"),
      "lists_in_lists": (b"\x80\x04" + b"]" * ((1 << 20) + 1), "the pickle has too many open lists"),
      "put_twice": (b"\x80\x04]q\0q\1q\0h\1h\0" + b"K\x01" * 3 + b".", "not a snapshot"),
      "put_over_open": (b"\x80\x04]q\0]q\0h\0.", "not a snapshot"),
  }
  for name, (data, text) in programs.items():
    write(name, data, text)
  # Every beginning of a good file.
  good = pickle.dumps(snapshot(), protocol=4)
  for length in range(3, len(good)):
    write(f"cut{length}", good[:length], "the file ends in the middle")
  print(json.dumps(expected))


if __name__ == "__main__":
  main()
