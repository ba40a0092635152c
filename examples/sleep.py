"""A server in Python that sleeps: it returns its memory, except what it forgets.

It marks two parts of its run, awake and asleep, with the CUDA profiler API, as servers do when a client asks them to
profile: `hbmprof run --capture-range=cudaProfilerApi -- python3 examples/sleep.py` writes a profile of each. Like
serve.py, it calls the driver by ctypes, so it needs no package.
"""
import ctypes

driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)


def allocate(size):
    address = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
        raise MemoryError(size)
    return address


def load_weights():
    return [allocate(8 << 20) for _ in range(4)]


def make_cache():
    return [allocate(1 << 20) for _ in range(16)]


def make_buffers():
    return [allocate(3 << 20)]


def sleep(addresses):
    for address in addresses:
        driver.cuMemFree_v2(address)


def main():
    weights = load_weights()
    cache = make_cache()
    buffers = make_buffers()
    driver.cuProfilerStart()
    driver.cuProfilerStop()
    sleep(weights + cache)  # the buffers are forgotten
    driver.cuProfilerStart()
    driver.cuProfilerStop()
    return buffers


main()
