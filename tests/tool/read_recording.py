#!/usr/bin/env python3
"""Writes the events of a recording as CSV. This program uses only docs/spec/recording.md as its source, and no code
of the project's reader, so that the two can be compared.

usage: read_recording.py RECORDING > events.csv
"""

import heapq
import struct
import sys
import zlib

KINDS = ("alloc", "free", "move_from", "move_to", "failed", "tags", "reset_peak", "mark")
MOVE_TO, FAILED = 3, 4


class Bytes:
  """Reads numbers and texts from bytes."""

  def __init__(self, data, at=0):
    self.data = data
    self.at = at

  def varint(self):
    value = shift = 0
    while True:
      byte = self.data[self.at]
      self.at += 1
      value |= (byte & 0x7F) << shift
      if byte < 0x80:
        return value
      shift += 7

  def signed(self):
    value = self.varint()
    return value >> 1 ^ -(value & 1)

  def text(self):
    length = self.varint()
    self.at += length
    return self.data[self.at - length:self.at]


def read_tables(contents, sites, threads):
  """Adds whether each site has a pool, and the id of each thread. Returns the start time, if given."""
  block = Bytes(contents)
  start = None
  while block.at < len(contents):
    section, _, count, elements = block.varint(), block.varint(), block.varint(), Bytes(block.text())
    if section == 1:
      start = elements.signed()
    for _ in range(count):
      if section == 7:
        sites.append(elements.varint() != 0)
        for _ in range(4):
          elements.varint()
        for _ in range(2 * elements.varint()):
          elements.text()
        for _ in range(8):
          elements.signed()
      elif section == 10:
        threads.append(elements.signed())
        elements.text()
  return start


def read_run(block, sites):
  """The events of a run: (time, kind, bytes, id, thread, site, is continued)."""
  count, time, shift = block.varint(), block.signed(), block.varint()
  sizes = [block.varint() for _ in range(5)]
  flags = block.data[block.at:block.at + count]
  block.at += count
  columns = []
  for size in sizes:
    columns.append(Bytes(block.data, block.at))
    block.at += size
  times, site_numbers, ids, all_bytes, threads = columns
  last_ids = [0, 0]
  last_sizes = [0] * 128
  thread = 0
  events = []
  for flag in flags:
    kind = flag & 15
    if flag & 128:
      time += times.varint()
    site = site_numbers.varint() - 1 if kind <= FAILED else -1
    if kind <= MOVE_TO:
      has_pool = sites[site]
      buffer = last_ids[has_pool] = (last_ids[has_pool] + (ids.signed() << shift)) % 2**64
    else:
      buffer = ids.varint()
    if flag & 64:
      size = all_bytes.signed()
    else:
      size = last_sizes[site % 128] if site >= 0 else 0
    if site >= 0:
      last_sizes[site % 128] = size
    if flag & 32:
      thread = threads.varint()
    events.append((time, kind, size, buffer, thread, site, bool(flag & 16)))
  return events


def changes(runs):
  """The changes of the runs as (time, number of the run, number in the run, events)."""
  for number, run in enumerate(runs):
    change = []
    order = 0
    for event in run:
      change.append(event)
      if not event[6]:
        yield change[0][0], number, order, change
        change = []
        order += 1


def main():
  with open(sys.argv[1], "rb") as file:
    data = file.read()
  assert data[:8] == b"HBMREC\r\n" and struct.unpack_from("<I", data, 8)[0] == 2
  blocks = []
  sites, threads = [], []
  start = None
  at = 12
  while at < len(data):
    marker, kind, compressed, _, _, _, stored, time, crc = struct.unpack_from("<4sBBHIIIqI", data, at)
    contents = data[at + 32:at + 32 + stored]
    assert marker == b"HBLK" and crc == zlib.crc32(contents, zlib.crc32(data[at:at + 28]))
    at += 32 + stored
    if kind == 1:
      found = read_tables(zlib.decompress(contents, -15) if compressed else contents, sites, threads)
      start = found if found is not None else start
    blocks.append((kind, compressed, contents, time))

  out = sys.stdout
  out.write("time_ns,event,bytes,id,thread,site\n")
  held, runs, run_count = [], [], 0
  # A recording without an end block ends at its last flush.
  end = [(6, 0, b"", 2**63)] if blocks and blocks[-1][0] == 6 else []
  for kind, compressed, contents, flushed in blocks + end:
    if kind == 2:
      block = Bytes(zlib.decompress(contents, -15) if compressed else contents)
      while block.at < len(block.data):
        runs.append(read_run(block, sites))
    if kind not in (5, 6):
      continue
    # `held` are those of earlier flushes, whose runs are earlier in the file.
    for time, number, order, change in changes(runs):
      heapq.heappush(held, (time, run_count + number, order, change))
    run_count += len(runs)
    runs = []
    while held and held[0][0] <= flushed:
      for time, event, size, buffer, thread, site, _ in heapq.heappop(held)[3]:
        shown_id = hex(buffer) if event <= MOVE_TO else ""
        out.write(f"{time - start},{KINDS[event]},{size if event <= FAILED else ''},{shown_id},{threads[thread]},"
                  f"{site if site >= 0 else ''}\n")


if __name__ == "__main__":
  main()
