"""Workers of multiprocessing that hold device memory: a process that ends, a pool whose workers a signal ends at the end
of `with`, and one that calls os._exit itself. argv: the start method, and the folder in which each worker leaves a file
with its process id as the name. Device memory is recorded by the linked library HBMPROF_TEST_LIBRARY, if this variable
is set, and otherwise allocated from the CUDA driver.
"""
import ctypes
import multiprocessing
import os
import sys

SIZE = 1 << 20
linked = os.environ.get("HBMPROF_TEST_LIBRARY")


def hold_memory():
    if linked:
        library = ctypes.CDLL(linked)
        library.hbmprof_record_alloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        library.hbmprof_record_alloc(1 << 40, SIZE, 0)
        return
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    address = ctypes.c_uint64()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(SIZE)) == 0


def work(folder):
    hold_memory()
    with open(os.path.join(folder, str(os.getpid())), "x"):
        return "held"


def work_and_exit(folder):
    work(folder)
    os._exit(3)


if __name__ == "__main__":
    method, folder = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if linked:
        ctypes.CDLL(linked).hbmprof_enabled()  # makes the profiler
        if os.environ.get("HBMPROF_TEST_HOLDS"):
            hold_memory()  # CUDA cannot be used before a fork
    for target in work, work_and_exit:
        process = context.Process(target=target, args=(folder,))
        process.start()
        process.join()
        print(target.__name__, process.exitcode)
    with context.Pool(2, maxtasksperchild=None) as pool:
        print(pool.apply(work, (folder,)))
    print("done")
