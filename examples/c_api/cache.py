#!/usr/bin/env python3
"""A page cache that forgets to free two of its pages, in Python with ctypes.

usage: cache.py LIBRARY PROFILE        LIBRARY: libhbmprof.so, such as /usr/local/lib/libhbmprof.so
"""

import contextlib
import ctypes
import sys

PAGE_BYTES = 4096


class Stats(ctypes.Structure):
  """hbmprof_stats of hbmprof/c_api.h, up to the fields that this program reads."""
  _fields_ = [("struct_size", ctypes.c_size_t), ("bytes_in_use", ctypes.c_int64),
              ("peak_bytes_in_use", ctypes.c_int64)]


class Attributes(ctypes.Structure):
  _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("kind", ctypes.c_int),
              ("allocator", ctypes.c_int)]


def load(path):
  """The library, with the types of the functions that this program calls."""
  library = ctypes.CDLL(path)
  library.hbmprof_last_error.restype = ctypes.c_char_p
  library.hbmprof_record_alloc_with.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(Attributes)]
  library.hbmprof_record_free.argtypes = [ctypes.c_void_p]
  library.hbmprof_get_stats.argtypes = [ctypes.c_int, ctypes.POINTER(Stats)]
  for name in ("hbmprof_device", "hbmprof_allocator", "hbmprof_save_device_memory_profile"):
    getattr(library, name).argtypes = [ctypes.c_char_p]
  library.hbmprof_tag_push.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
  return library


@contextlib.contextmanager
def scoped_tag(library, key, value):
  """A label for what this thread allocates in the `with` block."""
  library.hbmprof_tag_push(key.encode(), value.encode())
  try:
    yield
  finally:
    library.hbmprof_tag_pop()


def check(library, status):
  if status != 0:
    sys.exit(f"cache: {library.hbmprof_last_error().decode()}")


class Cache:

  def __init__(self, library, attributes):
    self.library = library
    self.attributes = attributes
    self.pages = []

  def add_page(self):
    page = ctypes.create_string_buffer(PAGE_BYTES)  # stands for memory of a device
    self.library.hbmprof_record_alloc_with(ctypes.addressof(page), PAGE_BYTES, self.attributes)
    self.pages.append(page)

  def remove_page(self):
    page = self.pages.pop()
    self.library.hbmprof_record_free(ctypes.addressof(page))


def main():
  path, profile = sys.argv[1:]
  library = load(path)
  attributes = Attributes(ctypes.sizeof(Attributes), library.hbmprof_device(b"npu:0"), 0,
                          library.hbmprof_allocator(b"cache"))
  cache = Cache(library, attributes)
  with scoped_tag(library, "phase", "decode"):
    for _ in range(5):
      cache.add_page()
  for _ in range(3):
    cache.remove_page()
  stats = Stats(ctypes.sizeof(Stats))
  check(library, library.hbmprof_get_stats(attributes.device, stats))
  check(library, library.hbmprof_save_device_memory_profile(profile.encode()))
  print(f"{stats.bytes_in_use} bytes in use, peak {stats.peak_bytes_in_use}")


if __name__ == "__main__":
  main()
