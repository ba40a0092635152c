#!/usr/bin/env python3
"""Writes a large snapshot of PyTorch with the instructions of Python's pickle module, protocol 4, without having it in
memory.

usage: large_torch_snapshot.py FILE MEBIBYTES [FRAMES]

The trace repeats 1,000 allocations and their frees, each with a list of FRAMES (30) frames. As in a real snapshot, the
frames are shared and the lists are not: the pickle numbers each of them. 64 blocks are live at the end.
"""
import struct
import sys

STACKS = 500
LIVE = 64


class Pickle:
  def __init__(self, file):
    self.file, self.parts, self.memo, self.texts = file, [b"\x80\x04"], 0, {}
    self.size = 0

  def flush(self):
    data = b"".join(self.parts)
    self.file.write(data)
    self.size += len(data)
    self.parts = []

  def put(self):
    self.parts.append(b"\x94")
    self.memo += 1
    return self.memo - 1

  def get(self, number):
    self.parts.append(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))

  def text(self, text):
    if text in self.texts:
      return self.get(self.texts[text])
    data = text.encode()
    self.parts.append(b"\x8c" + bytes([len(data)]) + data)
    self.texts[text] = self.put()

  def number(self, value):
    if value < 256:
      self.parts.append(b"K" + bytes([value]))
    elif value < 65536:
      self.parts.append(b"M" + struct.pack("<H", value))
    elif value < 1 << 31:
      self.parts.append(b"J" + struct.pack("<i", value))
    else:
      data = value.to_bytes(value.bit_length() // 8 + 1, "little")
      self.parts.append(b"\x8a" + bytes([len(data)]) + data)

  def begin(self, kind):
    self.parts.append(kind)
    number = self.put()
    self.parts.append(b"(")
    return number


def main():
  path, limit = sys.argv[1], int(sys.argv[2]) << 20
  depth = int(sys.argv[3]) if len(sys.argv) > 3 else 30
  with open(path, "wb") as file:
    out = Pickle(file)
    numbers, lists = {}, {}

    def frame(i):
      if i in numbers:
        return out.get(numbers[i])
      numbers[i] = out.begin(b"}")
      for key, value in (("name", f"function_{i}"), ("filename", f"/srv/model_{i % 40}.py"), ("line", i)):
        out.text(key)
        out.number(value) if isinstance(value, int) else out.text(value)
      out.parts.append(b"u")

    def frames(stack):
      out.text("frames")
      out.begin(b"]")
      if stack in lists:  # all of its frames have numbers
        return out.parts.append(lists[stack])
      for is_known in (False, True):
        first = len(out.parts)
        for level in range(depth):
          frame((stack * 7 + level * (stack % 5 + 1)) % 4000)
        if not is_known:
          out.parts.append(b"e")
      lists[stack] = b"".join(out.parts[first:]) + b"e"
      del out.parts[first:]

    def event(action, address, size, stack, time):
      out.begin(b"}")
      for key, value in (("action", action), ("addr", address), ("size", size), ("stream", 0), ("time_us", time),
                         ("compile_context", "N/A"), ("user_metadata", "")):
        out.text(key)
        out.number(value) if isinstance(value, int) else out.text(value)
      frames(stack)
      out.parts.append(b"u")

    base, room = 0x7F0000000000, 1 << 21
    out.begin(b"}")
    out.text("segments")
    out.begin(b"]")
    for i in range(1000):
      out.begin(b"}")
      for key, value in (("device", 0), ("address", base + i * room), ("total_size", room), ("allocated_size", 0)):
        out.text(key)
        out.number(value)
      frames(i % STACKS)
      out.text("blocks")
      out.begin(b"]")
      out.begin(b"}")
      for key, value in (("address", base + i * room), ("size", room), ("requested_size", room if i < LIVE else 0),
                         ("state", "active_allocated" if i < LIVE else "inactive")):
        out.text(key)
        out.number(value) if isinstance(value, int) else out.text(value)
      frames(i % STACKS)
      out.parts.append(b"ueu")
    out.parts.append(b"e")
    out.text("device_traces")
    out.begin(b"]")
    out.begin(b"]")
    count, time = 0, 1_700_000_000_000_000

    def add(*fields):
      nonlocal count, time
      time += 37
      count += 1
      event(*fields, time)
      if count % 1000 == 0:
        out.parts.append(b"e(")

    def add_all():
      for i in range(1000):
        add("alloc", base + i * room, room, i % STACKS)
      for i in range(1000):
        add("free_requested", base + i * room, room, i % STACKS)
        add("free_completed", base + i * room, room, i % STACKS)

    add_all()  # now all texts and frames have numbers, so the following bytes do not change
    out.flush()
    before = count, out.memo
    add_all()
    again, events, numbers_of_events = b"".join(out.parts), count - before[0], out.memo - before[1]
    out.flush()
    while out.size < limit:
      out.parts.append(again)
      out.flush()
      count += events
      out.memo += numbers_of_events
    for i in range(LIVE):
      add("alloc", base + i * room, room, i % STACKS)
    out.parts.append(b"eeu.")
    out.flush()
  print(count, "events,", out.memo, "numbers in the memo")


main()
