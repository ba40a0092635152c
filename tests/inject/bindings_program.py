"""Calls the driver, the runtime and NVML without a device: the first two through NVIDIA's bindings for Python, which
contain the runtime. Prints what they return."""

import ctypes

from cuda.bindings import driver, runtime

print(driver.cuMemAlloc(100))
print(driver.cuInit(0))
print(driver.cuMemAlloc(100))
print(driver.cuMemAllocManaged(100, 1))
print(driver.cuDriverGetVersion())
print(runtime.cudaMalloc(100))
print(runtime.cudaMallocHost(100))
print(runtime.cudaGetDeviceCount())
try:
  print("nvmlInit_v2:", ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())
except OSError:
  print("no NVML")
