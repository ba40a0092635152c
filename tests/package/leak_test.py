"""Uses the Python package under `hbmprof run`: labels, a saved profile, numbers, and leak_check."""
import ctypes
import gzip
import os
import signal

import hbmprof

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0


def allocate(size):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


def free(pointer):
    assert cuda.cuMemFree_v2(pointer) == 0


kept = allocate(1000)
before = hbmprof.stats()
assert before["bytes_in_use"] == 1000, before
with hbmprof.leak_check():
    with hbmprof.tag("phase", "decode"):
        free(allocate(4096))
try:
    with hbmprof.leak_check():
        leaked = allocate(12345)
except hbmprof.LeakError as error:
    assert "12345 bytes" in str(error) and "allocate" in str(error), error
else:
    raise SystemExit("leak_check found no leak")
with hbmprof.leak_check(max_bytes=100):
    more = allocate(100)
with hbmprof.tag("phase", "decode"):
    tagged = allocate(777)
hbmprof.counter("requests", 3)
hbmprof.save("saved.pb.gz")
assert hbmprof.stats("GPU:0")["bytes_in_use"] == 1000 + 12345 + 100 + 777


class Number:
    """An integer that is not an int, such as numpy.int64."""

    def __index__(self):
        return 0


assert hbmprof.stats(Number()) == hbmprof.stats(0)
for unknown in (1, 63, 64, -1, "typo"):
    try:
        hbmprof.stats(unknown)
    except hbmprof.Error as error:
        assert str(unknown) in str(error) and "the devices are: GPU:0" in str(error), error
    else:
        raise SystemExit(f"stats({unknown!r}) raised nothing")
hbmprof.save("after_typo.pb.gz")
with gzip.open("after_typo.pb.gz") as profile:
    assert b"typo" not in profile.read(), "stats() added a device"
try:
    hbmprof.save("/no/such/folder/x.pb.gz")
except hbmprof.Error as error:
    print(error)
else:
    raise SystemExit("save into a missing folder raised nothing")

for call, expected in (
    (lambda: hbmprof.counter("requests", 2**63), OverflowError),
    (lambda: hbmprof.save("cut\0off.pb.gz"), ValueError),
    (lambda: hbmprof.leak_check(-1).__enter__(), ValueError),
    (lambda: hbmprof.leak_check("1MiB").__enter__(), TypeError),
):
    try:
        call()
    except expected as error:
        print(error)
    else:
        raise SystemExit(f"no {expected.__name__}")


# A signal handler may interrupt the first use of the library in its thread.
hbmprof._library = None
with hbmprof._library_lock:
    signal.signal(signal.SIGUSR1, lambda number, frame: hbmprof.save("in_handler.pb.gz"))
    signal.raise_signal(signal.SIGUSR1)
assert os.path.getsize("in_handler.pb.gz") > 0

hbmprof._load().hbmprof_set_enabled(0)
try:
    with hbmprof.leak_check():
        pass
except hbmprof.Error as error:
    assert "recording is off" in str(error), error
else:
    raise SystemExit("leak_check passed although recording is off")

# After use_with_jax, JAX's plugin has the records, not the library that was loaded before.
loaded = hbmprof._load()
hbmprof.use_with_jax("tpu", "libtpu.so")
assert hbmprof._load() is not loaded
plugin = hbmprof.library_dir() / "libhbmprof_pjrt.so"
assert not plugin.exists() or hbmprof._load()._name == str(plugin), hbmprof._load()._name
print("leak_test: passed")
