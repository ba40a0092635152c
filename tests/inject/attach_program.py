# Records itself with hbmprof.start() after it has allocated device memory. argv: the path of a profile.
import ctypes
import sys

import hbmprof

driver = ctypes.CDLL("libcuda.so.1")
try:
    hbmprof.start(flight="a\nb")
    sys.exit("no error")
except ValueError as error:
    print(error)


def allocate(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0


context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
allocate(5 << 20)
hbmprof.start(sys.argv[1])
hbmprof.start()
with hbmprof.tag("phase", "after"):
    allocate(1 << 20)
print("in use", hbmprof.stats()["bytes_in_use"])
hbmprof.stop()
allocate(1 << 20)
hbmprof.start()
allocate(1 << 20)
print("in use", hbmprof.stats()["bytes_in_use"])
