#!/usr/bin/env python3
"""Uses the shared library from Python, with nothing but ctypes, and reads the profile back.

usage: ctypes_test.py LIBRARY PROFILE VERSION
"""

import ctypes
import sys

import profile_fields


class Stats(ctypes.Structure):
  """The first fields of hbmprof_stats, as in a program that was written for an older version."""
  _fields_ = [("struct_size", ctypes.c_size_t), ("bytes_in_use", ctypes.c_int64),
              ("peak_bytes_in_use", ctypes.c_int64), ("after", ctypes.c_int64)]


def expect(what, got, wanted):
  if got != wanted:
    sys.exit(f"ctypes_test: {what} is {got!r}, not {wanted!r}")


def main():
  library, path, version = sys.argv[1:]
  hbmprof = ctypes.CDLL(library)
  hbmprof.hbmprof_version.restype = ctypes.c_char_p
  hbmprof.hbmprof_last_error.restype = ctypes.c_char_p
  hbmprof.hbmprof_record_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
  hbmprof.hbmprof_record_free.argtypes = [ctypes.c_void_p]
  expect("the version", hbmprof.hbmprof_version().decode(), version)

  hbmprof.hbmprof_tag_push(b"phase", b"decode")
  expect("recorded", [hbmprof.hbmprof_record_alloc(0x10000 * i, 1000, 3) for i in (1, 2, 3)], [1, 1, 1])
  hbmprof.hbmprof_tag_pop()
  expect("freed", hbmprof.hbmprof_record_free(0x10000), 1)

  stats = Stats(struct_size=Stats.after.offset, after=-1)
  expect("the status", hbmprof.hbmprof_get_stats(3, ctypes.byref(stats)), 0)
  expect("in use", stats.bytes_in_use, 2000)
  expect("the peak", stats.peak_bytes_in_use, 3000)
  expect("the field behind struct_size", stats.after, -1)
  stats.struct_size = 0
  expect("the status without a struct_size", hbmprof.hbmprof_get_stats(3, ctypes.byref(stats)), 3)
  if b"struct_size" not in hbmprof.hbmprof_last_error():
    sys.exit(f"ctypes_test: the error says {hbmprof.hbmprof_last_error()}")

  expect("the status of a dump", hbmprof.hbmprof_save_device_memory_profile(path.encode()), 0)
  profile = profile_fields.Profile(path)
  expect("the profile's inuse_space", profile.total("inuse_space"), 2000)
  labels = profile.labels()
  for label in (("phase", "decode"), ("device", "GPU:3")):
    if label not in labels:
      sys.exit(f"ctypes_test: no sample has the label {label}, only {sorted(labels)}")


if __name__ == "__main__":
  main()
