"""Calls HIP: with "bindings", through AMD's bindings for Python, which look functions up; with "cupy", through CuPy, which
refers to versioned functions, and whose memory pool says what it has; else the library itself, which finds no device.
Prints what the calls return."""

import ctypes
import sys


def weights(hip):
  return hip.hipMalloc(3 << 20)[1]


def staging(hip):
  return hip.hipHostMalloc(4096, 0)[1]


if sys.argv[1] == "bindings":
  from rocm.bindings import hip
  print(hip.hipGetDeviceCount())
  kept = weights(hip), staging(hip)
  print(hip.hipFree(hip.hipMalloc(777)[1]))
elif sys.argv[1] == "cupy":
  import cupy
  from cupy.cuda import runtime

  def weights():
    return cupy.empty(3 << 20, cupy.uint8)

  def temporary():
    return cupy.zeros(1000000, cupy.uint8)[:1].size

  kept = weights(), temporary(), runtime.malloc(777), runtime.mallocManaged(4096), cupy.cuda.alloc_pinned_memory(5000)
  runtime.free(runtime.malloc(1 << 20))
  pool = cupy.get_default_memory_pool()
  free, total = runtime.memGetInfo()
  print("used", pool.used_bytes(), "total", pool.total_bytes(), "of the driver", total - free)
else:
  library = ctypes.CDLL(sys.argv[1])
  pointer = ctypes.c_void_p()
  number = ctypes.c_int(-1)
  print(library.hipGetDeviceCount(ctypes.byref(number)), number)
  for name in ("hipMalloc", "hipMallocManaged", "hipHostMalloc", "hipMallocAsync"):
    print(name, getattr(library, name)(ctypes.byref(pointer), ctypes.c_size_t(100), None), pointer)
  print(library.hipFree(None), library.hipDeviceReset(), library.hipGetDevice(ctypes.byref(number)))
