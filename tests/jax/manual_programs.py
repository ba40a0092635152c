"""Programs with the functions and arrays of the two examples in JAX's manual, "Profiling device memory".

usage: manual_programs.py functions|growth|leak|bounded FOLDER SHIM

functions  func2 returns two arrays of 40,000,000 bytes; func1, which it calls, makes one of them.
growth     anotherfunc keeps one array more in each of nine rounds: round i adds i x 40,000 bytes.
leak       the same list for 24 seconds, five arrays in a second, and one profile at the end.
bounded    likewise, but the list keeps the last ten arrays only.

Saves profiles into FOLDER: jaxs.N.pb.gz with JAX's own profiler, ours.N.pb.gz with SHIM, libhbmprof_pjrt.so.
"""
import ctypes
import os
import sys
import time

import jax
import jax.numpy as jnp


def save(number):
    jax.profiler.save_device_memory_profile(os.path.join(sys.argv[2], f"jaxs.{number}.pb.gz"))
    library = ctypes.CDLL(sys.argv[3])
    if library.hbmprof_save_device_memory_profile(os.path.join(sys.argv[2], f"ours.{number}.pb.gz").encode()) != 0:
        library.hbmprof_last_error.restype = ctypes.c_char_p
        sys.exit(library.hbmprof_last_error().decode())


def func1(x):
    return jnp.tile(x, 10) * 0.5


def func2(x):
    half = func1(x)
    return half, jnp.tile(x, 10) + 1


def functions():
    x = jax.random.normal(jax.random.key(42), (1000, 1000))
    arrays = func2(x)
    jax.block_until_ready(arrays)
    save(1)


def afunction():
    return jax.random.normal(jax.random.key(77), (1000000,))


def anotherfunc():
    arrays = []
    for i in range(1, 10):
        arrays.append(jax.random.normal(jax.random.key(42), (i, 10000)))
        arrays[-1].block_until_ready()
        save(i)


def growth():
    kept = afunction()
    anotherfunc()
    del kept


def grow_list(most):
    arrays = []
    end = time.monotonic() + 24
    while time.monotonic() < end:
        arrays.append(jax.random.normal(jax.random.key(42), (len(arrays) + 1, 10000)))
        arrays[-1].block_until_ready()
        del arrays[:-most]
        time.sleep(0.2)
    save(1)


def leak():
    grow_list(1000)


def bounded():
    grow_list(10)


globals()[sys.argv[1]]()
