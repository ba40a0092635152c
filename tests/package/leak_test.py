"""Uses the Python package under `hbmprof run`: labels, a saved profile, numbers, leak_check and peak_check."""
import ctypes
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import types

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
# Kernel code that is loaded at the first launch is not counted.
module = ctypes.c_void_p()
before = hbmprof.stats()["bytes_in_use"]
with hbmprof.leak_check(), hbmprof.peak_check(0):
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"code") == 0
assert hbmprof.stats()["bytes_in_use"] > before
assert cuda.cuModuleUnload(module) == 0
with hbmprof.tag("phase", "decode"):
    tagged = allocate(777)


async def coroutine():
    pass


def generator():
    yield


class Class:
    pass


def fails(error, text, function, *arguments):
    try:
        function(*arguments)
    except error as raised:
        assert text in str(raised), raised
    else:
        raise SystemExit(f"no error: {text}")


# A check that would check nothing is an error.
for parts in (coroutine, generator):
    fails(TypeError, "runs in parts", hbmprof.leak_check(), parts)
    fails(TypeError, "runs in parts", hbmprof.peak_check(1), parts)
fails(TypeError, "decorate its methods", hbmprof.leak_check(), Class)
fails(ValueError, "hbmprof.leak_check: max_bytes is <function", hbmprof.leak_check, allocate)
fails(ValueError, "max_bytes is '9999", hbmprof.leak_check, "9" * 400 + "TiB")
fails(ValueError, ": no device has so many bytes", hbmprof.peak_check, 2**63)
with hbmprof.peak_check("1GiB"):
    fails(hbmprof.Error, "begins inside another one", hbmprof.peak_check(1).__enter__)


@hbmprof.leak_check()
def leaks(size, depth):
    if depth > 0:
        leaks(size, depth - 1)
    elif size > 0:
        kept_by_leaks.append(allocate(size))


kept_by_leaks = []
leaks(0, 3)
fails(hbmprof.LeakError, "54321 bytes", leaks, 54321, 3)
free(kept_by_leaks.pop())
hbmprof.counter("requests", 3)
hbmprof.save("saved.pb.gz")
# A process in which nothing can be recorded says so, once.
alone = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "HBMPROF_GPU_OUTPUT")}
saved = subprocess.run([sys.executable, "-c", "import hbmprof\nfor _ in range(2): hbmprof.save('alone.pb.gz')"],
                       env=alone, capture_output=True, text=True, check=True)
assert saved.stderr.count("the profile is empty") == 1 and "hbmprof run" in saved.stderr, saved.stderr
early = subprocess.run([sys.executable, "-c", "import hbmprof; hbmprof.save('early.pb.gz')"],
                       capture_output=True, text=True, check=True)
assert "the profile is empty" not in early.stderr, early.stderr
stats = hbmprof.stats("GPU:0")
assert stats["bytes_in_use"] == 1000 + 12345 + 100 + 777
assert stats["driver_is_process"] in (0, 1) and 0 <= stats["bytes_free"] <= stats["bytes_limit"], stats


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


# Phases: as a decorator, in itself, and several times.
@hbmprof.phase("load")
def load(size):
    """Its text."""
    if size > 1000:
        load(size - 1000)
    return allocate(size)


decode = hbmprof.phase("decode")
before = hbmprof.stats()["bytes_in_use"]
load(3000)
load(500)
assert load.__name__ == "load" and load.__doc__ == "Its text."
with decode:
    with decode:
        allocate(70)
    allocate(7)
    load(400)
try:
    with decode:
        raise KeyError
except KeyError:
    allocate(5)
hbmprof.save("phases.pb.gz")
top = subprocess.run(["hbmprof", "top", "--by", "phase", "--json", "phases.pb.gz"], capture_output=True, text=True, check=True)
found = {row["labels"]["phase"] or "-": row["flat"] for row in json.loads(top.stdout)["rows"]}
assert found == {"load": 6000 + 500 + 400, "decode": 777 + 77, "-": before - 777 + 5}, found


async def serve():
    pass


def generate():
    yield


# The peak.
with hbmprof.peak_check("1KiB"):
    free(allocate(1024))
try:
    with hbmprof.peak_check(2000):
        first = load(1000)
        second = allocate(1500)
        free(first)
        free(second)
        free(allocate(1900))
except hbmprof.PeakError as error:
    assert str(error).startswith("the block used 2500 bytes of GPU:0 at its peak, more than 2000 (in use "), error
    assert " load " in str(error) and "+1000" in str(error) and "+1500" in str(error), error
else:
    raise SystemExit("peak_check found no peak")
try:
    with hbmprof.peak_check(0):
        free(allocate(1))
        raise KeyError("its own")
except KeyError:
    pass



# PyTorch's tensors in memory that its cache had before: the peak of the device does not change. The message named no
# function before.
class Attributes(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("kind", ctypes.c_int), ("allocator", ctypes.c_int)]


library = hbmprof._load()
pytorch = Attributes(ctypes.sizeof(Attributes), 0, 0, library.hbmprof_allocator(b"pytorch"))
segment = ctypes.c_void_p(allocate(1 << 20).value)
assert library.hbmprof_record_segment(segment, ctypes.c_size_t(1 << 20), ctypes.byref(pytorch)) == 1
statistics = {"allocated_bytes.all.peak": 0, "reserved_bytes.all.current": 1 << 20, "reserved_bytes.all.peak": 1 << 20}
torch = sys.modules["torch"] = types.ModuleType("torch")
torch._C = types.SimpleNamespace()
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, memory_stats=lambda _: dict(statistics),
                                   reset_peak_memory_stats=lambda _: statistics.update({"allocated_bytes.all.peak": 0}))


def tensor(size):
    assert library.hbmprof_record_block(segment, ctypes.c_size_t(size), ctypes.byref(pytorch)) == 1
    statistics["allocated_bytes.all.peak"] = size
    assert library.hbmprof_record_block_free(segment, ctypes.byref(pytorch)) == 1


tensor(100)
try:
    with hbmprof.peak_check("1KiB"):
        tensor(4096)
except hbmprof.PeakError as error:
    assert "PyTorch's tensors 4096, other memory 0" in str(error) and re.search(r"\+4096 B +tensor ", str(error)), error
else:
    raise SystemExit("peak_check found no peak of tensors")
del sys.modules["torch"]

for call, expected in (
    (lambda: hbmprof.phase("x")(serve), TypeError),
    (lambda: hbmprof.tag("x", "y")(generate), TypeError),
    (lambda: hbmprof.peak_check("2GB").__enter__(), ValueError),
    (lambda: hbmprof.peak_check(None).__enter__(), ValueError),
    (lambda: hbmprof.counter("requests", 2**63), OverflowError),
    (lambda: hbmprof.save("cut\0off.pb.gz"), ValueError),
    (lambda: hbmprof.leak_check(-1).__enter__(), ValueError),
    (lambda: hbmprof.leak_check("1MB").__enter__(), ValueError),
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

try:
    with hbmprof.peak_check(1):
        pass
except hbmprof.Error as error:
    assert "hbmprof.peak_check: recording is off" in str(error), error
else:
    raise SystemExit("peak_check passed although recording is off")

# After use_with_jax, JAX's plugin has the records, not the library that was loaded before.
loaded = hbmprof._load()
hbmprof.use_with_jax("tpu", "libtpu.so")
assert hbmprof._load() is not loaded
plugin = hbmprof.library_dir() / "libhbmprof_pjrt.so"
assert not plugin.exists() or hbmprof._load()._name == str(plugin), hbmprof._load()._name
print("leak_test: passed")
