"""npu.py [REQUESTS]: a server on an NPU with torch_npu, whose answers are only memory. After each request `log` keeps a
tensor, which is the leak; the other functions free what they allocate, or keep what does not grow."""
import sys

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


def serve(requests):
    weights, cache, kept = load(), Cache(), []
    moment("the weights")
    for number in range(requests):
        y = attend(read(number))
        cache.put(number)
        log(kept)
        if number == requests // 2:
            moment("half of the requests")
    moment("all requests")
    del y
    torch.npu.empty_cache()
    moment("without the cache")
    return weights, cache, kept


held = serve(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
