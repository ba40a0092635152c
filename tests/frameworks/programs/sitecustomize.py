"""Python imports this in each program of these tests. At its end, the program waits for PyTorch's threads.

PyTorch 2.15 ends the process with SIGABRT if the interpreter ends before a thread of the backward pass has destroyed
what the pass has left, which a busy machine can delay. It does so without hbmprof, too.
"""
import atexit
import time

atexit.register(time.sleep, 0.5)
