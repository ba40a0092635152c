"""numba: arrays of a device, some of which are freed, pinned and managed memory. numba knows its allocations and those
that it has not freed yet, and the driver what is in use. No kernel, because its compiler is a library of NVIDIA's."""
import numpy
from comparison import of_hbmprof, write
from numba import cuda

memory = cuda.current_context().memory_manager
at_start = memory.get_memory_info().free


def moment(name):
    live = [one.size for one in memory.allocations.values() if one.__class__.__name__ == "AutoFreePointer"]
    theirs = {"bytes": sum(live) + memory.deallocations._size, "blocks": len(live) + len(memory.deallocations),
              "reserved": at_start - memory.get_memory_info().free}
    write(name, theirs, of_hbmprof(None))


def load():
    return cuda.to_device(numpy.zeros(1 << 20, numpy.float32))


def grow(kept):
    for _ in range(20):
        kept.append(cuda.device_array(1 << 18, numpy.float64))


weights, kept = load(), []
moment("an array")
grow(kept)
moment("a list")
pinned, managed = cuda.pinned_array(1 << 20), cuda.managed_array(1 << 20)
del kept[1::2]
moment("half of the list")
del kept[:]
memory.deallocations.clear()
moment("the end")
