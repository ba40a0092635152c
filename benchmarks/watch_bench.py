"""Measures what hbmprof.torch.watch adds to the call of a module. Needs PyTorch and the Python package.

usage: hbmprof run -- python3 benchmarks/watch_bench.py
"""
import time

import torch

import hbmprof.torch


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def microseconds(model, backward):
    """Returns the processor time of a pass through the model, for each of its layers: the shortest of many."""
    best = float("inf")
    x = torch.ones(1, 16)
    for _ in range(300):
        start = time.thread_time()
        with torch.set_grad_enabled(backward):
            y = model(x)
        if backward:
            y.sum().backward()
        best = min(best, time.thread_time() - start)
    return best * 1e6 / len(model.layers)


torch.set_num_threads(1)
model = Layers(100)
for backward in (False, True):
    without = microseconds(model, backward)
    with hbmprof.torch.watch(model):
        watched = microseconds(model, backward)
    print(f"{'forward and backward' if backward else 'forward'}: {without:.2f} us per module, watched {watched:.2f} us, "
          f"added {watched - without:.2f} us")
