"""Ends while daemon threads record allocations with hbmprof's C interface in the library argv[1]. Before that it forks,
before and after its own first allocation: the child allocates too, with threads of its own, and ends.
"""
import ctypes
import os
import sys
import threading
import time

library = ctypes.CDLL(sys.argv[1])
library.hbmprof_record_alloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
library.hbmprof_record_free.argtypes = (ctypes.c_void_p,)


def allocate(address, size):
    library.hbmprof_record_alloc(address, size, 0)
    library.hbmprof_record_free(address)


def forever(number):
    while True:
        allocate(number << 40, 100 + number)
        allocate(number << 40, 200 + number)


def start_threads():
    for number in range(1, 4):
        threading.Thread(target=forever, args=(number,), daemon=True).start()
    time.sleep(0.05)


if __name__ == "__main__":
    for number in range(6):
        if number == 3:
            start_threads()  # from here on, the children are off
        child = os.fork()
        if child == 0:
            allocate(5 << 40, 300)
            start_threads()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.WEXITSTATUS(status) == 7, status
    print("done")
