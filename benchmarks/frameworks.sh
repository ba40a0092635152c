#!/usr/bin/env bash
# Prints what hbmprof costs in whole PyTorch, on the tests' substitute for CUDA, whose kernels cost nothing: a training
# step of frameworks_program.py, and torch.empty with its free under 0, 20 and 60 Python functions. Compared with the
# same program alone, and with PyTorch's own history. Each cell has the fastest and the median processor time of
# interleaved processes.
#
# usage: benchmarks/frameworks.sh [BUILD [FRAMEWORKS]]
#
# BUILD: a build folder with the targets hbmprof_tool, hbmprof_inject_cuda, fake_cuda_calls and fake_nvml (default
# build/release). FRAMEWORKS: the folder that scripts/test.sh frameworks leaves (default build/frameworks).
# environment: ROUNDS: how often each program runs, at least 1 (default 5). A round takes about a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release} frameworks=${2:-build/frameworks} rounds=${ROUNDS:-5}
die() { echo "error: $*" >&2; exit 1; }
[[ $# -le 2 ]] || die "$# arguments; usage: benchmarks/frameworks.sh [BUILD [FRAMEWORKS]]"
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "ROUNDS='$rounds' is not a number of at least 1"
for file in src/tool/hbmprof src/inject/libhbmprof_cuda.so tests/support/fake_cudart/{cuda_calls,nvml}; do
  [[ -e $build/$file ]] || die "no $build/$file: cmake --build $build" \
    "--target hbmprof_tool hbmprof_inject_cuda fake_cuda_calls fake_nvml"
done
[[ -e $frameworks/torch/site-packages ]] || die "no $frameworks/torch/site-packages: scripts/test.sh frameworks"
exec env PYTHONPATH=tests/frameworks python3 - "$build" "$frameworks" "$rounds" <<'PYTHON'
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run

MEASURED = ("step", "empty0", "empty20", "empty60")
RUN = ["run", "-o", "profiles"]
WAYS = {"alone": (None, []), "`hbmprof run`": (RUN, []), "`hbmprof run --record`": ([*RUN, "--record", "r.hbmrec"], []),
        "PyTorch's history, Python stacks": (None, ["python"]), "PyTorch's history, all stacks": (None, ["all"])}
build, frameworks = (pathlib.Path(folder).resolve() for folder in sys.argv[1:3])
run.make_doubles(build, frameworks)
runner = run.Runner(build, frameworks)
program = pathlib.Path("benchmarks/frameworks_program.py").resolve()
times = {way: {} for way in WAYS}
for _ in range(int(sys.argv[3])):
    for way, (options, arguments) in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [runner.command, *options, "--"] if options else []
            done = subprocess.run([*command, sys.executable, program, *arguments], cwd=folder, check=True, text=True,
                                  stdout=subprocess.PIPE, env=runner.environment("torch", folder=pathlib.Path(folder)))
        for name, fastest, median in (line.split() for line in done.stdout.splitlines()):
            times[way].setdefault(name, []).append((float(fastest), float(median)))
print(f"| | step with {times['alone']['allocations'][0][0]:.0f} allocations, us | torch.empty, depth 0 | 20 | 60 |")
print("|---|---|---|---|---|")
for way, measured in times.items():
    cells = [(min(a for a, _ in measured[n]), statistics.median(b for _, b in measured[n])) for n in MEASURED]
    print(f"| {way} | " + " | ".join(f"{fastest:.2f} / {median:.2f}" for fastest, median in cells) + " |")
PYTHON
