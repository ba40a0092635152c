"""Tensors with the phase `load`, and one without a phase. Then a kernel of its own name."""
import hbmprof
import torch

with hbmprof.phase("load"):
    weights = torch.zeros(4 << 20, device="cuda")
cache = torch.zeros(1 << 20, device="cuda")
cache.masked_scatter_(cache > 0, weights)
