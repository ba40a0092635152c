"""Answers of the substitutes for the driver and the runtime that NVIDIA's documentation (the comments in cuda.h and
cuda_runtime_api.h) defines. Prints those that differ."""
import ctypes
import mmap
import os

os.environ.pop("FAKE_CUDA_CALLS", None)  # these calls are not PyTorch's
driver = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaGetErrorName.restype = ctypes.c_char_p


def expect(what, found, wanted):
    if found != wanted:
        print(f"differs: {what}: {found}, documented: {wanted}")


def value(function, argument, kind=ctypes.c_int):
    """The value that a function stores, before an argument that is a number, and behind a handle."""
    out = kind()
    order = -1 if isinstance(argument, int) else 1
    result = function(*(argument, ctypes.byref(out))[::order])
    return (result, out.value) if result else out.value


context = ctypes.c_void_p()
expect("cuInit", driver.cuInit(0), 0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)

stream, blocking = ctypes.c_void_p(), ctypes.c_void_p()
driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, -9)
driver.cuStreamCreate(ctypes.byref(blocking), 0)
expect("priority, clamped", value(driver.cuStreamGetPriority, stream), -5)
expect("priority for the runtime", value(runtime.cudaStreamGetPriority, stream), -5)
expect("flags", value(driver.cuStreamGetFlags, stream, kind=ctypes.c_uint), 1)
driver.cuStreamBeginCapture_v2(stream, 0)
status = ctypes.c_int()
expect("capture of a stream that is not blocking", driver.cuStreamIsCapturing(None, ctypes.byref(status)), 0)
driver.cuStreamBeginCapture_v2(blocking, 0)
expect("capture of a blocking stream", driver.cuStreamIsCapturing(None, ctypes.byref(status)), 906)

first, untimed, last = (ctypes.c_void_p() for _ in range(3))
for event, flags in ((first, 0), (untimed, 2), (last, 0)):
    driver.cuEventCreate(ctypes.byref(event), flags)
driver.cuEventRecord(first, None)
driver.cuEventRecord(untimed, None)
time = ctypes.c_float()
expect("time to an event without a record", driver.cuEventElapsedTime(ctypes.byref(time), first, last), 400)
expect("time to an event without times", driver.cuEventElapsedTime(ctypes.byref(time), first, untimed), 400)

device = ctypes.c_int()
expect("the second of one device", driver.cuDeviceGetByPCIBusId(ctypes.byref(device), b"0000:02:00.0"), 101)
name = ctypes.c_char_p()
expect("name of no error", driver.cuGetErrorName(12345, ctypes.byref(name)), 1)
driver.cuGetErrorName(101, ctypes.byref(name))
expect("name of an error", name.value, b"CUDA_ERROR_INVALID_DEVICE")
expect("name of an error of the runtime", runtime.cudaGetErrorName(0), b"cudaSuccess")
expect("access to a peer without access", runtime.cudaDeviceEnablePeerAccess(0, 0), 101)

expect("limit of a stack", value(driver.cuCtxGetLimit, 0, kind=ctypes.c_size_t), 1024)
driver.cuCtxSetLimit(2, ctypes.c_size_t(1 << 24))
expect("limit of the heap, set", value(driver.cuCtxGetLimit, 2, kind=ctypes.c_size_t), 1 << 24)
expect("limit that there is not", driver.cuCtxGetLimit(ctypes.byref(ctypes.c_size_t()), 99), 215)

pages = ctypes.c_char.from_buffer(mmap.mmap(-1, 4096))
address = ctypes.c_void_p(ctypes.addressof(pages))
expect("registered once", driver.cuMemHostRegister_v2(address, ctypes.c_size_t(4096), 0), 0)
expect("registered twice", driver.cuMemHostRegister_v2(address, ctypes.c_size_t(4096), 0), 712)
expect("unregistered once", driver.cuMemHostUnregister(address), 0)
expect("unregistered twice", driver.cuMemHostUnregister(address), 713)
print("done")
