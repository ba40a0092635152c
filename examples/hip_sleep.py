"""A server on AMD's HIP that sleeps as vLLM does: it releases the memory of its weights, and keeps their addresses.

It calls HIP by ctypes, so it needs no package: only libamdhip64.so.7, or the tests' substitute for it.
"""
import ctypes

hip = ctypes.CDLL("libamdhip64.so.7")


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int)]


class Properties(ctypes.Structure):  # hipMemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("security", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


class Weights:
    def __init__(self, size):
        self.size = ctypes.c_size_t(size)
        self.address = ctypes.c_void_p()
        self.handle = ctypes.c_void_p()
        hip.hipMemAddressReserve(ctypes.byref(self.address), self.size, ctypes.c_size_t(0), None, ctypes.c_uint64(0))

    def wake(self):
        pinned_on_device_0 = Properties(1, 0, Location(1, 0))
        hip.hipMemCreate(ctypes.byref(self.handle), self.size, ctypes.byref(pinned_on_device_0), ctypes.c_uint64(0))
        hip.hipMemMap(self.address, self.size, ctypes.c_size_t(0), self.handle, ctypes.c_uint64(0))

    def sleep(self):
        hip.hipMemUnmap(self.address, self.size)
        hip.hipMemRelease(self.handle)


def in_use():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return (total.value - free.value) >> 20


def main():
    weights = Weights(24 << 20)
    weights.wake()
    print("awake:", in_use(), "MiB in use")
    weights.sleep()
    print("asleep:", in_use(), "MiB in use")
    return weights


main()
