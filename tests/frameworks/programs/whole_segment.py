"""Holds a tensor that is a whole segment of PyTorch's."""
import torch

weights = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
