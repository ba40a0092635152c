"""Reads pip's report of an installation from standard input, and prints NAME==VERSION of each package of it except
NVIDIA's libraries for CUDA, in one line."""
import json
import re
import sys

LIBRARY = re.compile(r"nvidia-(cublas|cuda|cudnn-cu|cufft|cufile|curand|cusolver|cusparse|mathdx|nccl|nvjitlink|nvshmem"
                     r"|nvvm)")
packages = [package["metadata"] for package in json.load(sys.stdin)["install"]]
print(*(f"{one['name']}=={one['version']}" for one in packages if not LIBRARY.match(one["name"].lower())))
