"""A training step of PyTorch's, and torch.empty with its free, under 0, 20 and 60 Python functions: prints the fastest
and the median processor time of each, in microseconds. Run by frameworks.sh.

usage: frameworks_program.py [HISTORY]    HISTORY: the stacks of PyTorch's own history: "python" or "all"
"""
import statistics
import sys
import time

import torch

if len(sys.argv) > 1:
    torch.cuda.memory._record_memory_history(stacks=sys.argv[1])
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(4, 16, 64, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    model(data).square().mean().backward()
    optimizer.step()


def empty():
    torch.empty(256, device="cuda")


def measure(name, call, count):
    times = []
    for _ in range(31):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append((time.process_time() - start) / count * 1e6)
    print(name, min(times), statistics.median(times), flush=True)


def under(depth, call):
    return under(depth - 1, call) if depth > 1 else call()


allocated = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
step()
before = allocated()
step()
print("allocations", allocated() - before, 0)
measure("step", step, 5)
for depth in (0, 20, 60):
    under(depth, lambda: measure(f"empty{depth}", empty, 1000))
