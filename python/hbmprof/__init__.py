"""The Python interface of hbmprof, the heap profiler for accelerator memory.

A program that runs under `hbmprof run` or whose JAX uses hbmprof's plugin (use_with_jax) is recorded without changes.
Another program, such as a notebook, can begin to record itself (start).
The functions here save a profile at a chosen time, label what is allocated, and check for leaks:

    import hbmprof

    hbmprof.save("before.pb.gz")
    with hbmprof.phase("decode"):
        serve()
    hbmprof.save("after.pb.gz")

All functions are thread-safe. They call the C interface of hbmprof (hbmprof/c_api.h) through ctypes.
"""

import contextlib
import ctypes
import gc
import importlib
import inspect
import operator
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings

__all__ = ["Error", "LeakError", "PeakError", "budget_check", "counter", "include_dir", "leak_check", "library_dir", "peak_check", "phase", "save", "start", "stats", "stop", "tag", "use_with_jax", "version"]

_MAX_DEVICES = 128
_MAX_DEVICE_NAME = 64
_NOT_KNOWN = -(2**63)


class Error(RuntimeError):
    """A call of the library failed. The message says what failed and why."""


class LeakError(AssertionError):
    """leak_check found that more device memory is in use after its block than before."""


class PeakError(AssertionError):
    """peak_check found that its block has used more device memory than it may."""


def __getattr__(name):
    # hbmprof.torch is imported when it is used first.
    if name == "torch":
        return importlib.import_module("hbmprof.torch")
    raise AttributeError(f"module 'hbmprof' has no attribute {name!r}")


class _Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_int64)
        for name in (
            "bytes_in_use",
            "peak_bytes_in_use",
            "num_allocs",
            "num_live",
            "largest_alloc_size",
            "pool_bytes",
            "idle_bytes",
            "bytes_limit",
            "largest_free_block_bytes",
            "driver_bytes_in_use",
            "driver_peak_bytes_in_use",
            "driver_cache_bytes",
            "unaccounted",
            "baseline",
        )
    ] + [("driver_is_process", ctypes.c_int), ("bytes_free", ctypes.c_int64)]


class _TrackerStats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_int64) for name in ("foreign_frees", "replaced_records", "dropped_records")
    ]


class _HttpAnswer(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("status", ctypes.c_int), ("content_type", ctypes.c_char_p),
                ("body", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def library_dir():
    """Returns the folder of libhbmprof_c.so and libhbmprof_pjrt.so, as a pathlib.Path.

    If the environment variable HBMPROF_LIBRARY_DIR is set, returns its value without a check. Otherwise raises Error if
    no folder above this package has the libraries.
    """
    named = os.environ.get("HBMPROF_LIBRARY_DIR")
    if named:
        return pathlib.Path(named)
    here = pathlib.Path(__file__).resolve()
    # PREFIX/lib/hbmprof for PREFIX/lib/python3.11/site-packages/hbmprof, TARGET/lib/hbmprof for `pip install --target
    # TARGET`; distributions have other folders for libraries.
    folders = ["lib", "lib64", f"lib/{sysconfig.get_config_var('MULTIARCH')}"]
    for parent in here.parents:
        for name in folders:
            folder = parent / name / "hbmprof"
            if (folder / "libhbmprof_c.so").exists():
                return folder
    raise Error(f"hbmprof: libhbmprof_c.so is in no folder lib/hbmprof above {here}; set HBMPROF_LIBRARY_DIR to its folder")


def include_dir():
    """Returns the folder of the headers (hbmprof/c_api.h), as a pathlib.Path. Raises Error if it is not found."""
    directory = library_dir()
    for parent in directory.parents:
        if (parent / "include" / "hbmprof" / "c_api.h").exists():
            return parent / "include"
    raise Error(f"hbmprof: the headers are in no folder include above {directory}")


_library = None
_uses_plugin = False  # use_with_jax was called
# Reentrant, because a signal handler of Python can call a function of this module while the same thread loads.
_library_lock = threading.RLock()


def _renew_locks():
    global _library_lock, _peak_check_lock
    _library_lock = threading.RLock()
    _peak_check_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)  # another thread of the parent may have had the lock


def _load():
    global _library
    if _library is not None:
        return _library
    with _library_lock:
        if _library is not None:
            return _library
        directory = library_dir()
        # If JAX has loaded the plugin, or will load it (use_with_jax), its library has the records. Otherwise
        # libhbmprof_c.so has them, together with the library that `hbmprof run` preloads.
        plugin = str(directory / "libhbmprof_pjrt.so")
        is_named = _uses_plugin or plugin in os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "")
        try:
            library = ctypes.CDLL(plugin, mode=os.RTLD_NOW | (0 if is_named else os.RTLD_NOLOAD))
        except OSError:
            try:
                library = ctypes.CDLL(str(directory / "libhbmprof_c.so"))
            except OSError as error:
                raise Error(f"hbmprof: the library cannot be loaded: {error}") from None
        library.hbmprof_last_error.restype = ctypes.c_char_p
        library.hbmprof_version.restype = ctypes.c_char_p
        library.hbmprof_save_device_memory_profile.argtypes = [ctypes.c_char_p]
        library.hbmprof_tag_push.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        library.hbmprof_set_counter.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        library.hbmprof_device_name.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        library.hbmprof_get_stats.argtypes = [ctypes.c_int, ctypes.POINTER(_Stats)]
        library.hbmprof_answer_http_get.argtypes = [ctypes.c_char_p, ctypes.POINTER(_HttpAnswer)]
        _library = library
        return library


def _check(status):
    if status != 0:
        raise Error((_load().hbmprof_last_error() or b"hbmprof: unknown error").decode(errors="replace"))


def version():
    """Returns the version of the library, such as "0.1.0"."""
    return _load().hbmprof_version().decode()


def save(path):
    """Writes a profile of the device memory that is in use now to the file `path` (usually NAME.pb.gz).

    pprof and the command `hbmprof` read it. Raises Error if the file cannot be written. Warns if nothing can be in it.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("hbmprof.save: the path contains a null byte")
    _check(_load().hbmprof_save_device_memory_profile(name))
    # The plugin, and the library that `hbmprof run` preloads and start() loads, record later what is not there yet.
    loaded = pathlib.Path("/proc/self/maps").read_text(errors="replace")
    if "/libhbmprof_pjrt" not in loaded and "/libhbmprof_gpu" not in loaded and not _devices():
        warnings.warn("hbmprof.save: the profile is empty, because nothing records the memory of this process: start the "
                      "program with `hbmprof run -- python3 ...`, or call hbmprof.start() first", RuntimeWarning,
                      stacklevel=2)


class _Block(contextlib.ContextDecorator):
    """A `with` block that can also decorate a function that runs in one part."""

    def __call__(self, function):
        if (inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
                or inspect.isasyncgenfunction(function)):
            raise TypeError(f"hbmprof: {function.__qualname__} runs in parts, between which other code of the thread "
                            "runs; use a `with` block around a part without await and yield")
        if inspect.isclass(function):
            raise TypeError(f"hbmprof: {function.__qualname__} is a class; decorate its methods")
        return super().__call__(function)


class _Tag(_Block):
    """What tag() returns. An object can be used several times, also by several threads and inside itself."""

    def __init__(self, key, value):
        self._key = str(key).encode()
        self._value = str(value).encode()

    def __enter__(self):
        _load().hbmprof_tag_push(self._key, self._value)
        return self

    def __exit__(self, *_):
        _load().hbmprof_tag_pop()
        return False


def tag(key, value):
    """Labels what this thread allocates inside a `with` block, or in a function that it decorates. Tags may be nested.

    A `with` block of an async function must not contain an `await`: other tasks of the thread would be labelled, too.
    As a decorator of an async function or of a generator, it raises TypeError.
    """
    return _Tag(key, value)


def phase(name):
    """The tag `phase`: `hbmprof top --by phase` shows what each part of the program has allocated.

        with hbmprof.phase("load"):
            model = load_model()

        @hbmprof.phase("decode")
        def decode(batch): ...
    """
    return tag("phase", name)


def counter(name, value):
    """Sets a counter of the program, such as the requests served so far. Profiles contain it: `hbmprof leaks` uses it."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"hbmprof.counter: {number} does not fit into 64 bits")
    _load().hbmprof_set_counter(str(name).encode(), number)


def stats(device=0):
    """Returns a dict of the numbers of one device: bytes_in_use, peak_bytes_in_use, num_live and others.

    `device` is the number N of GPU:N (an int, or a number such as numpy.int64), or a device's name. The keys are those
    of hbmprof_stats in hbmprof/c_api.h. A number that is not known is None. Raises Error if no memory was recorded on
    the device.
    """
    library = _load()
    name = f"GPU:{operator.index(device)}" if hasattr(device, "__index__") else str(device)
    # hbmprof_device() would add an unknown name, and every profile would show it.
    known = {_device_name(number): number for number in _devices()}
    # The library cuts longer names.
    name = name.encode()[:_MAX_DEVICE_NAME].decode(errors="ignore")
    if name not in known:
        tracker = _TrackerStats(struct_size=ctypes.sizeof(_TrackerStats))
        _check(library.hbmprof_get_tracker_stats(ctypes.byref(tracker)))  # says so in a forked child that is off
        names = f"the devices are: {', '.join(sorted(known))}" if known else "there is no device with recorded memory"
        raise Error(f"hbmprof.stats: no memory was recorded on the device {name!r}; {names}")
    result = _Stats(struct_size=ctypes.sizeof(_Stats))
    _check(library.hbmprof_get_stats(known[name], ctypes.byref(result)))
    values = {name: getattr(result, name) for name, _ in _Stats._fields_[1:]}
    return {name: None if value == _NOT_KNOWN else value for name, value in values.items()}


def _devices():
    """Returns the numbers of the devices on which memory was recorded."""
    devices = (ctypes.c_int * _MAX_DEVICES)()
    return devices[: max(0, _load().hbmprof_devices(devices, _MAX_DEVICES))]


def _device_name(device):
    name = ctypes.create_string_buffer(_MAX_DEVICE_NAME + 1)
    _load().hbmprof_device_name(device, name, len(name))
    return name.value.decode(errors="replace")


def _all_stats():
    """Returns (number, numbers) of each device on which memory was recorded."""
    result = []
    for device in _devices():
        one = _Stats(struct_size=ctypes.sizeof(_Stats))
        if _load().hbmprof_get_stats(device, ctypes.byref(one)) == 0:
            result.append((device, one))
    return result


# Kinds of memory that leak_check does not count; the last two are not memory of the device.
_NOT_COUNTED = ("pool", "executable", "managed", "pinned_host")


def _bytes_by_kind():
    """Returns {device's name: {kind of memory: bytes in use}}."""
    library = _load()
    answer = _HttpAnswer(struct_size=ctypes.sizeof(_HttpAnswer))
    _check(library.hbmprof_answer_http_get(b"/metrics", ctypes.byref(answer)))
    text = ctypes.string_at(answer.body, answer.size).decode(errors="replace")
    library.hbmprof_free_http_answer(ctypes.byref(answer))
    result = {}
    for labels, number in re.findall(r"^hbmprof_device_memory_bytes\{(.*)\} (\d+)$", text, re.M):
        values = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        name = re.sub(r"\\(.)", lambda escape: escape[1].replace("n", "\n"), values["device"])
        kinds = result.setdefault(name, {})
        kinds[values["kind"]] = kinds.get(values["kind"], 0) + int(number)  # a line for each value of a tag
    return result


def _allocated():
    """Returns {device's name: bytes of live buffers, and of live blocks of pools}, and the bytes of kernel code."""
    kinds = _bytes_by_kind()
    allocated = {name: sum(size for kind, size in of_device.items() if kind not in _NOT_COUNTED)
                 for name, of_device in kinds.items()}
    return allocated, sum(of_device.get("executable", 0) for of_device in kinds.values())


def _torch_cuda():
    """Returns the module torch.cuda if the program uses it, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _free_what_is_left():
    """Frees what the program no longer needs: cycles of objects, and the workspaces that PyTorch keeps for cuBLAS."""
    gc.collect()
    if _torch_cuda() is not None:
        getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", lambda: None)()


def _torch_statistics(reset_peaks=False):
    """Returns {device's name: PyTorch's statistics of its memory}; {} if PyTorch uses no device, or counts nothing."""
    cuda = _torch_cuda()
    if cuda is None:
        return {}
    try:
        devices = range(cuda.device_count())
        if reset_peaks:
            for device in devices:
                cuda.reset_peak_memory_stats(device)
        return {f"GPU:{device}": cuda.memory_stats(device) for device in devices}
    except RuntimeError:  # of an allocator of the program's own (CUDAPluggableAllocator)
        return {}


def _dropped_records(function, what):
    library = _load()
    if not library.hbmprof_enabled():
        raise Error(f"hbmprof.{function}: recording is off (HBMPROF=0, or it was turned off), so no {what} can be found")
    result = _TrackerStats(struct_size=ctypes.sizeof(_TrackerStats))
    _check(library.hbmprof_get_tracker_stats(ctypes.byref(result)))
    return result.dropped_records


def _check_recorded(function, what, before):
    if _dropped_records(function, what) > before:
        raise Error(f"hbmprof.{function}: allocations were not recorded, because a limit was reached (HBMPROF_MAX_LIVE or "
                    "HBMPROF_MAX_HOST_BYTES)")
    if not _devices():
        warnings.warn(f"hbmprof.{function}: nothing was checked, because this process has recorded no device memory so "
                      "far: does it run under `hbmprof run`, and does it use a device?", RuntimeWarning,
                      stacklevel=5)  # the `with` block


class _Check(_Block):
    """What leak_check() and peak_check() return. `check` makes the context manager of one block."""

    def __init__(self, check, limit):
        self._check = check
        self._limit = limit

    def _recreate_cm(self):
        return _Check(self._check, self._limit)  # a decorated function can call itself

    def __enter__(self):
        __tracebackhide__ = True  # pytest shows the test instead of this function
        self._open = self._check(self._limit)
        return self._open.__enter__()

    def __exit__(self, *error):
        __tracebackhide__ = True
        return self._open.__exit__(*error)


def _command():
    beside = pathlib.Path(sys.executable).with_name("hbmprof")
    return str(beside) if beside.exists() else "hbmprof"


def _bytes(what, size):
    """Returns the bytes of a size such as 4096, "4096", "64KiB" or "1.5GiB"."""
    shown = repr(size)
    text = f"{what} is {shown if len(shown) <= 100 else shown[:100] + '...'}"
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB|TiB)?", str(size))
    if match is None or (isinstance(size, float) and not size.is_integer()):
        raise ValueError(f"{text}; write a number of bytes, or a size such as \"64KiB\", \"100MiB\" or \"2GiB\"")
    number = float(match[1]) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(match[2] or "B")
    if number >= 2**63:
        raise ValueError(f"{text}: no device has so many bytes")
    return int(number)


# The frames of pytest, of this package and of the interpreter, which say nothing about a test.
_FRAMES_OF_TOOLS = (r"/(_pytest|pluggy)/|/pytest/__main__\.py$|/hbmprof/(__init__|pytest_plugin)\.py$|<frozen "
                    r"|/libpython[^/]*$|/python[0-9.]*$")


def _diff(*arguments):
    """Returns the exit status of `hbmprof diff`, and what it prints; None and why it did not run."""
    command = [_command(), "diff", "--own", "-n", "20", "--known", f"tools={_FRAMES_OF_TOOLS}", *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"(hbmprof diff: {error})"
    return result.returncode, result.stdout.strip() or f"(hbmprof diff: {result.stderr.strip()})"


def _growth(before_file, after_file, *options):
    """Returns the call tree of what has grown, as the command `hbmprof` prints it, or why there is none."""
    _, text = _diff("--tree", "--exact", *options, before_file, after_file)
    return text


def leak_check(max_bytes=0):
    """Raises LeakError if the device memory in use has grown by more than `max_bytes` bytes at the end of the block.

    `max_bytes` is a number or a size such as "64KiB". The growth of all devices is summed up. What counts are buffers,
    and blocks of pools such as tensors of PyTorch. Idle memory of pools, kernel code that CUDA loads at the first
    launch, and the workspaces of cuBLAS that PyTorch keeps do not count. The message shows the functions that hold the
    memory, if the command `hbmprof` is found. If the block itself raises an exception, nothing is checked. Other
    threads must not allocate meanwhile. Raises Error if recording is off at the start or at the end, or if an
    allocation in the block was not recorded because a limit was reached. Warns if the process has recorded no device
    memory at all. Can decorate a function that runs in one part.

        def test_decode():
            with hbmprof.leak_check():
                decode()
    """
    return _Check(_leak_check, _bytes("hbmprof.leak_check: max_bytes", max_bytes))


@contextlib.contextmanager
def _leak_check(limit):
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory() as folder:
        before_file, after_file = os.path.join(folder, "before.pb.gz"), os.path.join(folder, "after.pb.gz")
        dropped = _dropped_records("leak_check", "leak")
        _free_what_is_left()
        before, code_before = _allocated()
        save(before_file)
        yield
        _check_recorded("leak_check", "leak", dropped)
        _free_what_is_left()
        after, code = _allocated()
        growth = sum(max(0, after.get(device, 0) - before.get(device, 0)) for device in after)
        if growth <= limit:
            return
        save(after_file)
        raise LeakError(f"{growth} bytes of device memory that were allocated in the block are still in use (not "
                        f"counted: {_not_counted(code - code_before)})\n" +
                        _growth(before_file, after_file, "-w", "kind!=pool", "-w", "kind!=executable"))


def _not_counted(code):
    return f"idle memory of pools, {max(0, code)} bytes of kernel code"


def peak_check(max_bytes):
    """Raises PeakError if the block has at some time used more than `max_bytes` bytes of a device, beyond the bytes that
    were in use at its start.

    `max_bytes` is a number or a size such as "2GiB". Kernel code that CUDA loads at the first launch does not count. Of
    PyTorch, the peak of its tensors counts, as PyTorch knows it (torch.cuda.max_memory_allocated, whose peak the block
    resets), and not the idle memory of its cache; idle memory of other pools counts. The message shows the functions
    that held the memory at the peak, if the command `hbmprof` is found. If the block itself raises an exception,
    nothing is checked. The block begins a new peak of each device, so other threads must not allocate meanwhile. Raises
    Error in the same cases as leak_check and if another such block has not ended, and warns as leak_check does.

        def test_decode():
            with hbmprof.peak_check("2GiB"):
                decode()
    """
    return _Check(_peak_check, _bytes("hbmprof.peak_check: max_bytes", max_bytes))


_peak_check_lock = threading.Lock()


@contextlib.contextmanager
def _only_peak_check():
    lock = _peak_check_lock  # in a child that is forked meanwhile, it is another one
    if not lock.acquire(blocking=False):
        raise Error("hbmprof.peak_check: the block begins inside another one, which would lose its peak")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _peak_check(limit):
    __tracebackhide__ = True
    with _only_peak_check(), tempfile.TemporaryDirectory() as folder:
        before_file, after_file = os.path.join(folder, "before.pb.gz"), os.path.join(folder, "after.pb.gz")
        dropped = _dropped_records("peak_check", "peak")
        _free_what_is_left()
        for device in _devices():
            _load().hbmprof_reset_peak(device)
        before = {device: one.bytes_in_use for device, one in _all_stats()}
        kinds_before = _bytes_by_kind()
        torch_before = _torch_statistics(reset_peaks=True)
        save(before_file)
        yield
        _check_recorded("peak_check", "peak", dropped)
        kinds = _bytes_by_kind()
        torch_after = _torch_statistics()
        over = []
        for device, one in _all_stats():
            name = _device_name(device)
            start, peak = before.get(device, 0), one.peak_bytes_in_use
            code = max(0, _executable(kinds, name) - _executable(kinds_before, name))
            used = max(0, peak - start - code)
            trees = [("peak_space",)]
            text = f"in use {start} at the start, {peak} at the peak; not counted: {code} bytes of kernel code"
            if torch_after.get(name):
                of_start = torch_before.get(name, {})
                tensors, reserved = (
                    max(0, torch_after[name].get(f"{what}.all.peak", 0) - of_start.get(f"{what}.all.current", 0))
                    for what in ("allocated_bytes", "reserved_bytes"))
                others = max(0, used - reserved)
                used = tensors + others
                if one.pool_bytes > 0:
                    # Tensors can be in memory that the cache had before. Their peak is that of the pool's blocks.
                    trees = [("pool_peak_space",)] if tensors > 0 else []
                    trees += [("peak_space", "-w", "allocator!=pytorch")] if others > 0 else []
                text = f"PyTorch's tensors {tensors}, other memory {others}; not counted: {_not_counted(code)}"
            if used > limit:
                over.append((name, f"the block used {used} bytes of {name} at its peak, more than {limit} ({text})", trees))
        if not over:
            return
        save(after_file)
        raise PeakError("\n".join(
            "\n".join([text] + [_growth(before_file, after_file, "-w", f"device={name}", "-w", "kind!=executable", "--type",
                                        *tree) for tree in trees]) for name, text, trees in over))


def budget_check(budget):
    """Raises PeakError if a function, or all together, exceeds the file `budget` at the peak of the block.

    `hbmprof budget` makes the file of a profile. `hbmprof diff --budget`, which must be found, compares the peak of the
    block with it; what was in use at its start counts as well. Raises Error if there is no answer, and in the same cases
    as peak_check.

        def test_decode():
            with hbmprof.budget_check("memory.budget"):
                decode()
    """
    return _Check(_budget_check, os.fspath(budget))


@contextlib.contextmanager
def _budget_check(budget):
    __tracebackhide__ = True
    with _only_peak_check(), tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "peak.pb.gz")
        dropped = _dropped_records("budget_check", "peak")
        _free_what_is_left()
        for device in _devices():
            _load().hbmprof_reset_peak(device)
        yield
        _check_recorded("budget_check", "peak", dropped)
        if not any(one.peak_bytes_in_use for _, one in _all_stats()):
            return
        save(file)
        status, text = _diff("--budget", budget, file)
        if status == 1:
            raise PeakError(f"the block exceeds {budget}:\n{text}")
        if status != 0:
            raise Error(f"hbmprof.budget_check: {text}")


def _executable(kinds, name):
    return kinds.get(name, {}).get("executable", 0)


_attached = None  # libhbmprof_gpu.so, after start()


def start(output="", **options):
    """Begins to record the CUDA memory of this process, as `hbmprof attach` does from outside.

    The process must have used CUDA before. Call start() before any other function of this module: these functions then
    act on what it records. `output` is the path of the profile at exit, as in `hbmprof run -o`. Further arguments set
    options: flight=100000 is the environment variable HBMPROF_FLIGHT=100000, socket_dir="/run/me" makes a control
    channel. They take the place of environment variables of these names; those of the first call hold. Memory from
    before has the call site "[before attach]". Does nothing if the process is recorded already. Raises Error if it cannot
    be recorded; the message says why.
    """
    global _attached
    if _library is not None and _attached is None:
        raise Error("hbmprof.start: call it before all other functions of hbmprof")
    given = {name: value for name, value in os.environ.items() if name.startswith("HBMPROF")}
    given.update({f"HBMPROF_{name.upper()}": str(value) for name, value in options.items()})
    if output:
        given["HBMPROF_GPU_OUTPUT"] = os.fspath(output)
    lines = "".join(f"{name}={value}\n" for name, value in given.items())
    if len(lines.splitlines()) != len(given) or "\0" in lines:
        raise ValueError("hbmprof.start: an option contains a line break or a null byte")
    path = str(library_dir() / "libhbmprof_gpu.so")
    try:
        # Global, so that libhbmprof_c.so finds it.
        _attached = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise Error(f"hbmprof.start: the library cannot be loaded: {error}") from None
    code = _attached.hbmprof_attach(os.fsencode(lines))
    if code not in (0, 1, 2):  # 1, 2: it is recorded already
        _attached.hbmprof_attach_text.restype = ctypes.c_char_p
        raise Error(f"hbmprof.start: {_attached.hbmprof_attach_text(code).decode()}")


def stop():
    """Ends what start() has begun. What was recorded stays. start() can be called again."""
    if _attached is not None:
        _attached.hbmprof_detach()


def _jax_plugin(platform):
    """Returns the name of the module that is installed for JAX as the plugin of this name, as jax_plugins.xla_cuda13 is
    for "cuda"; None if there is none."""
    try:
        import jax_plugins
    except ImportError:
        return None
    names = (module.name for module in pkgutil.iter_modules(jax_plugins.__path__, "jax_plugins."))
    return next((name for name in names if re.fullmatch(rf".*\.xla_{re.escape(platform)}\d*", name)), None)


def use_with_jax(platform, plugin=None):
    """Makes JAX use hbmprof's plugin for the devices of another plugin. Call it before the first import of jax.

    `platform` is the name that JAX then uses for the platform. `plugin` is the path of the real plugin's library; None:
    the environment variable HBMPROF_PJRT_PLUGIN names it. If a plugin that is installed for JAX has the name `platform`
    ("cuda"), hbmprof's takes its place, and `plugin` is by default its library. Sets environment variables of this
    process, as in docs/pjrt.md. Raises Error if jax was imported already, or if no plugin is named.
    """
    global _library, _uses_plugin
    if "jax" in sys.modules:
        raise Error("hbmprof.use_with_jax: call it before jax is imported")
    installed = _jax_plugin(platform)
    if plugin is not None:
        os.environ["HBMPROF_PJRT_PLUGIN"] = os.fspath(plugin)
    if installed is None and not os.environ.get("HBMPROF_PJRT_PLUGIN"):
        raise Error("hbmprof.use_with_jax: name the real plugin's library by `plugin` or by HBMPROF_PJRT_PLUGIN")
    library = library_dir() / "libhbmprof_pjrt.so"
    os.environ["JAX_PLATFORMS"] = platform
    if installed is None:
        names = [f"{platform}:{library}"]
        if os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS"):
            names.insert(0, os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"])
        os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = ",".join(names)
    else:
        # JAX refuses a second plugin of this name. The installed one registers our library, with its own options. The
        # import also imports jax, which reads JAX_PLATFORMS.
        module = importlib.import_module(installed)
        os.environ.setdefault("HBMPROF_PJRT_PLUGIN", os.fspath(module._get_library_path()))
        module._get_library_path = lambda: library
    # The next call loads the plugin, which has the records from now on.
    _uses_plugin = True
    _library = None
