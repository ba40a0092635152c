"""Ends a watched program directly after backward(), in several processes. Prints how many of them a signal has ended.

The main thread and those of PyTorch's backward pass share a processor, where the others run last. So they still destroy
what backward() has left when the main thread is at its end. PyTorch alone aborts here; watch() waits for them.
"""
import atexit
import os
import pathlib
import sys
import time

import torch

import hbmprof.torch

PROCESSES = 6


def train():
    atexit.unregister(time.sleep)  # of sitecustomize.py
    model = torch.nn.Linear(16, 16).to("cuda")
    hbmprof.torch.watch(model)
    batch = torch.ones(4, 16, device="cuda")
    model(batch).sum().backward()  # starts PyTorch's threads
    processor = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, processor)
    for task in pathlib.Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("pt_autograd"):
            os.sched_setaffinity(int(task.name), processor)
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
    sys.setswitchinterval(0.3)  # the main thread keeps the interpreter's lock until its end
    model(batch).sum().backward()


killed = 0
for _ in range(PROCESSES):
    child = os.fork()
    if child == 0:
        train()
        sys.exit()
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(killed, "of", PROCESSES, "processes were killed")
