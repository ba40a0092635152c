"""A server in Python that allocates on the CUDA driver: weights at its start, and one page for each request.

It calls the driver by ctypes, so it needs no package: only libcuda.so.1, or the tests' substitute for it.
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
    return address.value


class Cache:
    def __init__(self):
        self.pages = []

    def grow(self):
        self.pages.append(allocate(64 << 10))


def answer(cache):
    cache.grow()


def main():
    weights = allocate(8 << 20)
    cache = Cache()
    for _ in range(100):
        answer(cache)
    return weights


main()
