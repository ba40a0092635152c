#!/usr/bin/env python3
"""Compares the time of a pair of calls in four processes on the substitute driver: started by `hbmprof run`, attached
to, untouched, and attached to and detached from. The processes take turns, so that other work on the machine changes
all of them. Prints the medians and two ratios.

usage: benchmarks/attach.py [BUILD [ROUNDS]]     BUILD: a build folder (default build/bench)
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench").resolve()
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
tool = str(build / "src/tool/hbmprof")
bench = str(build / "benchmarks/attach_bench")
driver = build / "tests/support/fake_cudart/cuda"


def main():
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, HBMPROF_SOCKET_DIR=folder + "/sockets", LD_LIBRARY_PATH=str(driver))

        def start(*before):
            process = subprocess.Popen([*before, bench], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env=environment)
            assert process.stdout.readline() == b"ready\n"
            return process

        def command(*words):
            subprocess.run([tool, *words], env=environment, check=True, stdout=subprocess.DEVNULL)

        processes = {name: start() for name in ("untouched", "attached", "detached")}
        processes["run"] = start(tool, "run", "-o", folder, "--")
        for name in ("attached", "detached"):
            command("attach", "-o", folder, str(processes[name].pid))
        command("attach", "--detach", str(processes["detached"].pid))
        nanos = {name: [] for name in processes}
        for _ in range(rounds):
            for name, process in processes.items():
                process.stdin.write(b"x")
                process.stdin.flush()
                nanos[name].append(float(process.stdout.readline()))
        for process in processes.values():
            process.stdin.close()
            process.wait()
    median = {name: statistics.median(values[rounds // 10:]) for name, values in nanos.items()}
    for name, value in median.items():
        print(f"{name:10} {value:8.1f} ns per pair (median of {rounds} rounds)")
    print(f"attached / run        {median['attached'] / median['run']:.3f}")
    print(f"detached / untouched  {median['detached'] / median['untouched']:.3f}")


main()
