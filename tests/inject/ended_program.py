"""Holds memory of the driver in a variable, and frees it when the interpreter destroys the variable at its end."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


class Tensor:

  def __init__(self, size):
    self.address, self.free = ctypes.c_uint64(), cuda.cuMemFree_v2
    cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size))

  def __del__(self):
    self.free(self.address)


def load_weights():
  return Tensor(3 << 20)


context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
Tensor(1 << 20)
weights = load_weights()
