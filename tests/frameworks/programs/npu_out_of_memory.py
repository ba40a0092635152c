"""Needs memory that torch_npu's cache has and the device has not, then more than both have."""
import torch
import torch_npu


def allocate(gib):
    return torch.empty(gib << 30, dtype=torch.uint8, device="npu")


kept = [allocate(4) for _ in range(3)]
del kept[1]
kept.append(allocate(7))
print("the cache was enough")
try:
    allocate(6)
except RuntimeError as error:
    print(error)
