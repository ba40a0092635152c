"""Two threads create and destroy functions that allocate, while two others allocate in functions that stay. argv[1]: the
number of all allocations. A function that allocates N bytes is named made_N, in the file "<made N>", and allocates in
line N % 7 + 2. The allocations are calls of the CUDA driver; with argv[2], they are recorded with hbmprof's C interface
in that shared library.
"""
import ctypes
import marshal
import sys
import threading

linked = ctypes.CDLL(sys.argv[2]) if len(sys.argv) > 2 else None
if linked is not None:
    linked.hbmprof_record_alloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    linked.hbmprof_record_free.argtypes = (ctypes.c_void_p,)
else:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemAlloc_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    driver.cuMemFree_v2.argtypes = (ctypes.c_uint64,)

SIZES = 64
FIRST_MADE = 20000
FIRST_FIXED = 30000


def enter_device():
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def source_of(size):
    return "def made_%d(allocate):\n%s    allocate(%d)\n" % (size, "\n" * (size % 7), size)


def make(code):
    # A new code object each time; it is dropped as soon as the function is.
    space = {}
    exec(marshal.loads(code), space)
    return next(value for name, value in space.items() if name.startswith("made_"))


def work(count, makes, thread):
    if linked is None:
        enter_device()
    address = ctypes.c_uint64(thread << 40)
    pointer = ctypes.byref(address)

    def allocate(size):
        if linked is not None:
            assert linked.hbmprof_record_alloc(address.value, size, 0) == 1
            linked.hbmprof_record_free(address.value)
        else:
            assert driver.cuMemAlloc_v2(pointer, size) == 0
            driver.cuMemFree_v2(address)

    def fixed_0():
        allocate(FIRST_FIXED)

    def fixed_1():
        allocate(FIRST_FIXED + 1)

    codes = [
        marshal.dumps(compile(source_of(FIRST_MADE + i), "<made %d>" % (FIRST_MADE + i), "exec"))
        for i in range(SIZES)
    ]
    for i in range(count):
        if makes:
            make(codes[i % SIZES])(allocate)
        elif i % 2 == 0:
            fixed_0()
        else:
            fixed_1()


if __name__ == "__main__":
    each = int(sys.argv[1]) // 4
    threads = [threading.Thread(target=work, args=(each, i % 2 == 0, i + 1)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done")
