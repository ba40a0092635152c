# Holds device memory and leaks, from its start on, through the driver. Ends at the end of its input.
import ctypes
import select
import sys

driver = ctypes.CDLL("libcuda.so.1")


def allocate(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0


def leak_one_step():
    allocate(64 << 10)


context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
allocate(64 << 20)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    leak_one_step()
