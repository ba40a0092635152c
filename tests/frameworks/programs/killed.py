"""A server that kills its engine, a process with tensors of 100 MiB, as soon as it is asked to end. The engine asks
`hbmprof run` to end, as systemd or docker would; a signal from the server itself would not count."""
import multiprocessing
import os
import signal
import sys

import torch


def engine(run):
    weights = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    os.kill(run, signal.SIGTERM)
    signal.pause()
    return weights


def end(*_):
    process.kill()
    process.join()
    sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    process = multiprocessing.get_context("spawn").Process(target=engine, args=(os.getppid(),))
    process.start()
    process.join(60)
