#!/usr/bin/env bash
# Prints what hbmprof costs in whole frameworks, on the tests' substitute for CUDA, whose kernels cost nothing: the work
# of frameworks_program.py in PyTorch and, if they are installed in FRAMEWORKS, JAX, TensorFlow and ONNX Runtime.
# Compared with the same program alone, and with PyTorch's own history. Each cell has the fastest and the median
# processor time of interleaved processes, in microseconds.
#
# usage: benchmarks/frameworks.sh [BUILD [FRAMEWORKS]]
#
# BUILD: a build folder with the targets hbmprof_tool, hbmprof_gpu, fake_cuda_calls and fake_nvml (default
# build/bench). FRAMEWORKS: the folder that scripts/test.sh frameworks leaves (default build/frameworks).
# environment: ROUNDS: how often each program runs, at least 1 (default 5). A round takes some minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/bench} frameworks=${2:-build/frameworks} rounds=${ROUNDS:-5}
die() { echo "error: $*" >&2; exit 1; }
[[ $# -le 2 ]] || die "$# arguments; usage: benchmarks/frameworks.sh [BUILD [FRAMEWORKS]]"
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "ROUNDS='$rounds' is not a number of at least 1"
for file in src/tool/hbmprof src/inject/libhbmprof_gpu.so tests/support/fake_cudart/{cuda_calls,nvml}; do
  [[ -e $build/$file ]] || die "no $build/$file: cmake --build $build" \
    "--target hbmprof_tool hbmprof_gpu fake_cuda_calls fake_nvml"
done
[[ -e $frameworks/torch/site-packages ]] || die "no $frameworks/torch/site-packages: scripts/test.sh frameworks"
exec env PYTHONPATH=tests/frameworks python3 - "$build" "$frameworks" "$rounds" <<'PYTHON'
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run

RUN = ["run", "-o", "profiles"]
PROGRAMS = ("torch", "import", "jax", "tensorflow", "onnxruntime")
WAYS = {"alone": (None, []), "`hbmprof run`": (RUN, []), "`hbmprof run --record`": ([*RUN, "--record", "r.hbmrec"], []),
        "PyTorch's history, Python stacks": (None, ["python"]), "PyTorch's history, all stacks": (None, ["all"])}
build, frameworks = (pathlib.Path(folder).resolve() for folder in sys.argv[1:3])
run.make_doubles(build, frameworks)
runner = run.Runner(build, frameworks)
program = pathlib.Path("benchmarks/frameworks_program.py").resolve()
times = {}
for _ in range(int(sys.argv[3])):
    for name in PROGRAMS:
        framework = "torch" if name == "import" else name
        for way, (options, arguments) in WAYS.items():
            if not runner.is_installed(framework) or (arguments and name != "torch"):
                continue
            with tempfile.TemporaryDirectory() as folder:
                command = [runner.command, *options, "--"] if options else []
                done = subprocess.run([*command, sys.executable, program, name, *arguments], cwd=folder, check=True,
                                      text=True, stdout=subprocess.PIPE,
                                      env=runner.environment(framework, folder=pathlib.Path(folder)))
            for what, fastest, median in (line.split("\t") for line in done.stdout.splitlines() if "\t" in line):
                times.setdefault(what, {}).setdefault(way, []).append((float(fastest), float(median)))
print("| us | " + " | ".join(WAYS) + " |\n" + "|---" * (len(WAYS) + 1) + "|")
for what, measured in times.items():
    cells = [f"{min(a for a, _ in measured[way]):.2f} / {statistics.median(b for _, b in measured[way]):.2f}"
             if way in measured else "" for way in WAYS]
    print(f"| {what} | " + " | ".join(cells) + " |")
PYTHON
