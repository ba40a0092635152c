"""Five functions allocate blocks of PyTorch's caching allocator, as tensors do, from the real libc10_cuda.so. argv[1] is
the library of torch_program.cc, argv[2] is libc10_cuda.so. With argv[3] = "leak", grow_kv_cache keeps each tenth of
its blocks. argv[4] are the seconds that the program runs, with twenty requests in a second; without it, it has 30.
"""
import ctypes
import sys
import time

library = ctypes.CDLL(sys.argv[1])
# torch::empty and torch::release
empty, release = library._ZN5torch5emptyEm, library._ZN5torch7releaseEPv
empty.argtypes, empty.restype = (ctypes.c_size_t,), ctypes.c_void_p
release.argtypes, release.restype = (ctypes.c_void_p,), None


class Tensor:
    """Is freed with its last variable, at the end of the interpreter at the latest."""

    def __init__(self, address, free=release):
        self.address, self.free = address, free

    def __del__(self):
        self.free(self.address)


def load_weights():
    return Tensor(empty(3 << 20))


def make_activation():
    return empty(200 << 10)


def grow_kv_cache():
    return empty(128 << 10)


def take_workspace():
    return empty(1 << 20)


def copy_input():
    return empty(64 << 10)


def serve(leaks, seconds):
    end = time.monotonic() + seconds
    request = 0
    while time.monotonic() < end or request < 30:
        blocks = [make_activation(), take_workspace(), copy_input()]
        page = grow_kv_cache()
        if not leaks or request % 10 != 0:
            blocks.append(page)
        for block in blocks:
            release(block)
        request += 1
        if seconds:
            time.sleep(0.05)


library.torch_open(sys.argv[2].encode())
weights = [load_weights() for _ in range(4)]
serve(sys.argv[3:4] == ["leak"], float((sys.argv[4:] or [0])[0]))
