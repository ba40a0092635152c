"""npu.py [REQUESTS SECONDS]: a server on an NPU with torch_npu, whose answers are only memory. In each request, which
takes SECONDS, `log` keeps a tensor, which is the leak; the other functions free what they allocate, or keep what does
not grow. With SECONDS, it ends after the last request."""
import sys
import time

import torch
import torch_npu
from oracle import moment


def load():
    return [torch.empty(3 << 20, dtype=torch.uint8, device="npu") for _ in range(8)]


def read(number):
    return torch.empty((1 + number % 5) << 20, dtype=torch.uint8, device="npu")


def attend(x):
    parts = [torch.empty_like(x) for _ in range(3)]
    return parts[1]


class Cache:
    def __init__(self):
        self.pages = {}

    def put(self, number):
        self.pages[number % 8] = torch.empty(700_000, dtype=torch.uint8, device="npu")


def log(kept):
    kept.append(torch.empty(200_000, dtype=torch.uint8, device="npu"))


def serve(requests=60, seconds=0):
    weights, cache, kept = load(), Cache(), []
    moment("the weights")
    for number in range(int(requests)):
        y = attend(read(number))
        cache.put(number)
        log(kept)
        time.sleep(seconds)
        if number == requests // 2 and not seconds:
            moment("half of the requests")
    if seconds:
        return weights, cache, kept
    moment("all requests")
    del y
    torch.npu.empty_cache()
    moment("without the cache")
    return weights, cache, kept


held = serve(*map(float, sys.argv[1:]))
