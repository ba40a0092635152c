"""Allocates on the CUDA driver from Python functions of all sorts.

Each call site requests a different size. Writes Python's own stack of each size to the file in argv[1]: a line "SIZE
COUNT", then "FUNCTION<TAB>FILE<TAB>LINE" for each frame, innermost first. argv[2] is the number of rounds.
"""
import asyncio
import atexit
import ctypes
import functools
import signal
import sys
import threading

driver = ctypes.CDLL("libcuda.so.1")
# The same function, called without releasing the interpreter's lock.
holding = ctypes.PyDLL("libcuda.so.1")
for library in (driver, holding):
    library.cuMemAlloc_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def enter_device():
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


enter_device()

expected = {}
counts = {}
problems = []


def name_of(code):
    return code.co_qualname if hasattr(code, "co_qualname") else code.co_name


def expect(size):
    stack = []
    frame = sys._getframe(1)
    while frame is not None:
        stack.append((name_of(frame.f_code), frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    if expected.setdefault(size, stack) != stack:
        problems.append((size, stack))
    counts[size] = counts.get(size, 0) + 1
    return size


def allocate(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), expect(size)) == 0


def allocate_holding(size):
    address = ctypes.c_uint64()
    assert holding.cuMemAlloc_v2(ctypes.byref(address), expect(size)) == 0


# --- Nested functions, methods, recursion. ---


def outer():
    def inner():
        allocate(10001)

    inner()
    allocate_holding(
        10002,
    )


class Outer:
    class Inner:
        def method(self):
            allocate(10101)

        @property
        def attribute(self):
            allocate(10102)

        def __getattr__(self, name):
            allocate(10103)

        def __init__(self):
            allocate(10104)

    allocate(10105)

    @staticmethod
    def static():
        allocate(10106)

    @classmethod
    def of_class(cls):
        allocate(10107)


class Deleted:
    def __del__(self):
        allocate(10108)


def methods():
    inner = Outer.Inner()
    inner.method()
    inner.attribute
    inner.missing
    Outer.static()
    Outer.of_class()
    Deleted()

    class Local:
        allocate(10109)


def recurse(depth):
    if depth == 0:
        allocate(10201)
    else:
        recurse(depth - 1)


# --- Generators and coroutines. ---


def generate():
    allocate(10301)
    yield 1
    yield from generate_inner()


def generate_inner():
    allocate(10302)
    yield 2


def generators():
    for _ in generate():
        pass


def generators_by_c():
    iterator = generate_by_c()
    next(iterator)
    list(iterator)


def generate_by_c():
    allocate(10303)
    yield 1
    allocate(10304)


async def coroutine():
    allocate(10401)
    await asyncio.sleep(0)
    allocate(10402)
    async for _ in asynchronous_generator():
        pass


async def asynchronous_generator():
    allocate(10403)
    yield 1


async def main():
    await coroutine()
    await asyncio.gather(coroutine_of_task())


async def coroutine_of_task():
    allocate(10404)


def coroutines():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


# --- C between Python functions. ---

libc = ctypes.CDLL(None)
comparison = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


def callbacks():
    values = (ctypes.c_int * 2)(2, 1)

    def compare(one, other):
        allocate(10501)
        return one[0] - other[0]

    libc.qsort(values, ctypes.c_size_t(2), ctypes.c_size_t(4), comparison(compare))
    sorted([1], key=lambda x: allocate(10502))
    functools.reduce(lambda x, y: allocate(10503), [1, 2])
    list(map(lambda x: allocate(10504), [1]))


def comprehensions():
    [allocate(10601) for _ in "a"]
    {allocate(10602): 1 for _ in "a"}
    tuple(allocate(10603) for _ in "a")


def exceptions():
    try:
        raise ValueError
    except ValueError:
        allocate(10701)
    finally:
        allocate(10702)


def made_code():
    space = {"allocate": allocate}
    exec(compile("def größe():\n    allocate(10801)\ngröße()\n", "/tmp/made up.py", "exec"), space)
    exec(compile("\n" * 70000 + "allocate(10802)", "<large 线>", "exec"), space)
    eval("allocate(10803)", space)


def on_signal(number, frame):
    allocate(10901)


def signals():
    signal.signal(signal.SIGUSR1, on_signal)
    signal.raise_signal(signal.SIGUSR1)


def in_thread(number):
    if number == 0:
        allocate(11000)
    elif number == 1:
        allocate(11001)
    elif number == 2:
        allocate(11002)
    else:
        allocate(11003)


def threads(rounds):
    def work(number):
        enter_device()
        for _ in range(rounds):
            in_thread(number)

    all_threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()


def at_exit():
    allocate(11101)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for size, stack in expected.items():
            file.write("%d %d\n" % (size, counts[size]))
            for frame in stack:
                file.write("%s\t%s\t%d\n" % frame)


if __name__ == "__main__":
    atexit.register(at_exit)
    rounds = int(sys.argv[2])
    for _ in range(rounds):
        outer()
        methods()
        recurse(20)
        generators()
        generators_by_c()
        coroutines()
        callbacks()
        comprehensions()
        exceptions()
        made_code()
        signals()
    threads(rounds)
    assert not problems, problems
    print("done")
