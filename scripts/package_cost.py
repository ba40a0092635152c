#!/usr/bin/env python3
"""Measures what the packages of scripts/package.sh cost, and compares it with the limits.

usage: package_cost.py FOLDER [SPAWNS]     FOLDER has bin/hbmprof and lib/hbmprof; SPAWNS: of each command, default 500

Prints the size and the newest needed version of the C library of each program and library. On the processor that they
are for, also the time from the start to the end of `true` with and without the injected library, and of
`hbmprof --version`: the median of SPAWNS spawns, which alternate. Exits with 1 if a limit is exceeded. The limits of the
times are for an idle system.
"""
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

GLIBC = (2, 17)
INJECTED_BYTES = 2_000_000
LOAD_MS = 2.0
START_MS = 30.0


def needed_glibc(path):
    """The newest version of the C library in the file's list of needed versions, as (major, minor). None: the file needs no library."""
    command = ["readelf", "--version-info", "--wide", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needs = text.partition("Version needs section")[2]
    found = re.findall(r"Name: GLIBC_([0-9.]+)", needs)
    return max((tuple(int(n) for n in version.split(".")[:2]) for version in found), default=None)


def machine_of(path):
    return {62: "x86_64", 183: "aarch64"}.get(int.from_bytes(path.read_bytes()[18:20], "little"))


def spawn_ms(command, environment):
    devnull = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    start = time.perf_counter()
    process = os.posix_spawn(command[0], command, environment, file_actions=devnull)
    _, status = os.waitpid(process, 0)
    elapsed = (time.perf_counter() - start) * 1000
    if status != 0:
        sys.exit(f"error: {' '.join(command)} ended with wait status {status}")
    return elapsed


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    spawns = int(sys.argv[2]) if len(sys.argv) == 3 else 500
    tool = folder / "bin/hbmprof"
    injected = folder / "lib/hbmprof/libhbmprof_gpu.so"
    exceeded = []

    def check(text, value, limit, unit):
        print(f"{text}, limit {limit} {unit}")
        if value > limit:
            exceeded.append(text)

    for path in [tool, *sorted(folder.glob("lib/hbmprof/*.so"))]:
        size = path.stat().st_size
        version = needed_glibc(path)
        text = f"{path.relative_to(folder)}: {size} bytes"
        if path == injected:
            check(text, size, INJECTED_BYTES, "bytes")
        else:
            print(text)
        if version:
            check(f"{path.relative_to(folder)}: glibc {version[0]}.{version[1]}", version, GLIBC, "(major, minor)")

    if machine_of(tool) != platform.machine():
        print(f"no times: this is not {machine_of(tool)}")
    else:
        true = ["/bin/true"]
        runs = {
            "true": lambda: spawn_ms(true, {}),
            "preloaded": lambda: spawn_ms(true, {"LD_PRELOAD": str(injected.resolve())}),
            "hbmprof --version": lambda: spawn_ms([str(tool), "--version"], {}),
        }
        times = {name: [] for name in runs}
        for _ in range(spawns):
            for name, run in runs.items():
                times[name].append(run())
        median = {name: statistics.median(values) for name, values in times.items()}
        print(f"true: {median['true']:.3f} ms; with the injected library {median['preloaded']:.3f} ms, "
              f"{median['preloaded'] / median['true']:.2f} times")
        load = median["preloaded"] - median["true"]
        check(f"load of the injected library: {load:.3f} ms", load, LOAD_MS, "ms")
        start = median["hbmprof --version"]
        check(f"hbmprof --version: {start:.3f} ms", start, START_MS, "ms")
    for text in exceeded:
        print(f"FAILED: {text}")
    return 1 if exceeded else 0


sys.exit(main())
