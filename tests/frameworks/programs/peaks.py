"""Its tensors have their peak of 250 MiB later than the driver's memory has its own, inside PyTorch's cache."""
import torch


def warm_up():
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")


def load_weights():
    return torch.empty(150 << 20, dtype=torch.uint8, device="cuda")


def make_cache():
    return torch.empty(100 << 20, dtype=torch.uint8, device="cuda")


warm_up()
weights, cache = load_weights(), make_cache()
