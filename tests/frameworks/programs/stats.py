"""Asks for the statistics of its devices with the Python package after the first CUDA call."""
import hbmprof
import torch

tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
hbmprof.stats()
