#!/usr/bin/env python3
"""Runs whole PyTorch and JAX under hbmprof on the tests' substitutes for CUDA and for Ascend's CANN, compares each
program's memory with what the framework itself says, and checks what users see (checks.py).

usage: run.py BUILD FRAMEWORKS [NAME...]
       run.py BUILD FRAMEWORKS -- COMMAND...

BUILD: a folder of a preset with the command, the injected library and the substitute. FRAMEWORKS: the folder with the
installed packages, as scripts/test.sh frameworks leaves it; doubles and results go there too. NAME: of a program of the
table or of a check. Prints a table with a row for each moment: hbmprof's number, and the framework's where it differs;
then the checks, and the functions that the programs have called. Exits 1 if a cell differs, a check fails, or README.md
does not list a function.

The second form only runs a command, such as `hbmprof run -- python3 train.py`, with the framework and the substitute. If
the command does not name another framework, such as `jax`, it gets PyTorch.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import checks

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parent.parent
COLUMNS = ("bytes", "blocks", "reserved", "allocated", "peak", "lines")
CAPACITY = 16 << 30

Program = collections.namedtuple("Program", "name arguments settings devices", defaults=("", 1))
PROGRAMS = [
    Program("MLP, Adam", "train.py mlp"),
    Program("transformer", "train.py transformer"),
    Program("ResNet-18", "train.py resnet"),
    Program("GPT-2, KV cache", "gpt2.py"),
    Program("CUDA graph", "features.py graph"),
    Program("streams", "features.py streams"),
    Program("pinned memory", "features.py pinned"),
    Program("DataLoader workers", "features.py loader"),
    Program("torch.compile", "features.py compiled"),
    Program("expandable_segments", "features.py plain", "expandable_segments:True"),
    Program("cudaMallocAsync", "features.py plain", "backend:cudaMallocAsync"),
    Program("spawn", "spawn.py"),
    Program("TensorFlow", "tensorflow_arrays.py"),
    Program("ONNX Runtime", "onnxruntime_model.py"),
    Program("numba", "numba_arrays.py"),
    Program("torch_npu", "npu.py"),
    Program("torch_npu, expandable", "npu.py", "expandable_segments:True"),
    Program("torchrun, 2 ranks", "-m torch.distributed.run --nproc-per-node=2 ddp.py", "", 2),
]


def framework_of(*words):
    """Returns the folder of the framework that a program or a check with such names needs."""
    names = " ".join(pathlib.Path(word).name for word in words).lower()
    if "npu" in re.split(r"[^a-z]+", names):
        return "npu"
    folders = {"jax": "jax", "tensorflow": "tensorflow", "onnxruntime": "onnxruntime", "numba": "numba", "vllm": "vllm",
               "sglang": "sglang", "llama": "llama.cpp"}
    return next((folder for word, folder in folders.items() if word in names), "torch")


class Runner:
    """Runs programs under hbmprof; each has a folder of its own in FRAMEWORKS/results."""

    def __init__(self, build, frameworks):
        self.build = build
        self.frameworks = frameworks
        self.results = frameworks / "results"
        self.calls = frameworks / "calls"
        self.command = str(build / "src/tool/hbmprof")

    def environment(self, framework, settings="", devices=1, folder=None):
        support = self.build / "tests/support"
        doubles = self.frameworks / "doubles"
        libraries = (doubles, support / "fake_cudart/cuda_calls", support / "fake_cudart/nvml", support / "fake_vendors/hal",
                     support / "fake_vendors/cann/lib64")
        paths = [self.frameworks / framework / "site-packages", HERE / "programs", SOURCES / "tests/consumer",
                 SOURCES / "python"]
        return {
            **os.environ,
            "PATH": f"{pathlib.Path(self.command).parent}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "PYTHONPATH": ":".join(map(str, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            **self.allocator(framework, settings),
            "TORCHINDUCTOR_CACHE_DIR": str(self.results / "inductor_cache"),
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "HBMPROF_LIBRARY_DIR": str(self.build / "src/inject"),
            "HBMPROF_PJRT_PLUGIN": str(self.jax_plugin()),
            "FAKE_CUDA_DEVICES": str(0 if framework == "npu" else devices),
            "FAKE_CUDA_CAPACITY": str(CAPACITY),
            "FAKE_VENDORS_CAPACITY": str(CAPACITY),
            "FAKE_CUDA_CALLS": str(self.calls / framework),
            "DOUBLES_CALLS": str(self.calls / f"{framework}.stubs"),
            "FRAMEWORKS_COMMAND": self.command,
            "FRAMEWORKS_RESULTS": str(folder / "rows"),
        }

    def allocator(self, framework, settings):
        """The variables for PyTorch's allocator, and with torch_npu those that CANN needs."""
        if framework != "npu":
            return {"PYTORCH_CUDA_ALLOC_CONF": settings}
        cann = str(self.build / "tests/support/fake_vendors/cann")
        return {"PYTORCH_NPU_ALLOC_CONF": settings, "ASCEND_HOME_PATH": cann, "ASCEND_OPP_PATH": cann,
                "LD_PRELOAD": str(self.frameworks / "doubles/option_keys.so")}

    def jax_plugin(self):
        return self.frameworks / "jax/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so"

    def run(self, name, arguments, settings="", devices=1, options=()):
        """Returns the exit status, the output, and the profiles that the processes have written at their ends."""
        folder = self.results / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        arguments = [str(HERE / "programs" / a) if (HERE / "programs" / a).is_file() else a for a in arguments]
        environment = self.environment(framework_of(*arguments), settings, devices, folder)
        command = [self.command, "run", "-o", str(folder / "profiles"), *options, "--", sys.executable, *arguments]
        with open(folder / "output", "w") as output:
            status = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output,
                                    timeout=900).returncode
        return status, (folder / "output").read_text(), sorted((folder / "profiles").glob("*.gz"))

    def start(self, program):
        """Starts a program of PyTorch's without hbmprof."""
        environment = self.environment("torch", folder=self.results)
        return subprocess.Popen([sys.executable, HERE / "programs" / program], env=environment, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def is_installed(self, framework):
        return (self.frameworks / framework / "site-packages").exists()

    def run_program(self, program, name):
        """Returns the exit status of a program of the table."""
        return self.run(name, program.arguments.split(), program.settings, program.devices)[0]

    def run_for_table(self, program):
        """Returns the rows of a program's moments, its duration, and what is wrong or None."""
        start = time.monotonic()
        name = program.name.replace(", ", "-").replace(" ", "-")
        status = self.run_program(program, name)
        seconds = time.monotonic() - start
        results = self.results / name / "rows"
        rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        problem = None
        if status != 0 or len(rows) < 3:
            problem = f"exit status {status}, {len(rows)} moments; see {results.parent / 'output'}"
        return sorted(rows, key=lambda row: row["process"]), seconds, problem

    def run_pages(self, framework):
        """The commands of the pages that need a framework. Returns the exit status and the output."""
        command = [sys.executable, SOURCES / "tests/docs/docs_test.py", "--framework", framework,
                   self.results / f"pages_{framework}"]
        environment = self.environment(framework, folder=self.results)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def run_jax(self):
        """The programs of JAX's manual on XLA's CUDA plugin, compared with JAX's own profiles. Returns the output, and
        what is wrong or None."""
        folder = self.results / "JAX"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shim = self.build / "src/inject/libhbmprof_pjrt.so"
        command = [sys.executable, SOURCES / "tests/jax/manual.py", shim, self.jax_plugin(),
                   self.frameworks / "jax/site-packages", self.command]
        done = subprocess.run(command, env=self.environment("jax", folder=folder), capture_output=True, text=True)
        return done.stdout, None if done.returncode == 0 else f"exit status {done.returncode}: {done.stderr[-2000:]}"


def lines_of(row):
    """Returns {line: (hbmprof's bytes, the framework's)}; the second is None if the framework knows no lines."""
    ours, theirs = row["hbmprof"]["lines"], row["framework"].get("lines")
    return {line: (ours.get(line, 0), None if theirs is None else theirs.get(line, 0))
            for line in sorted({*ours, *(theirs or ())})}


def cells(row):
    """Returns hbmprof's value and the framework's for each column, None if it has none; of lines, how many are equal and
    how many there are."""
    ours, theirs, lines = row["hbmprof"], row["framework"], lines_of(row)
    equal = sum(mine in (yours, None) for yours, mine in lines.values())
    return [(ours[key], theirs.get(key)) for key in COLUMNS[:-1]] + [(equal, len(lines))]


def make_doubles(build, frameworks):
    """Makes the doubles, unless they are newer than what they are made from."""
    doubles = frameworks / "doubles"
    folders = sorted(frameworks.glob("*/site-packages"))
    sources = [*folders, HERE / "make_doubles.py", *HERE.glob("*.cc"),
               SOURCES / "tests/support/torch_cudart/torch_cudart.cc"]
    made = doubles / "stubs.txt"
    if made.exists() and all(source.stat().st_mtime < made.stat().st_mtime for source in sources):
        return
    shutil.rmtree(doubles, ignore_errors=True)
    subprocess.run([sys.executable, HERE / "make_doubles.py", doubles, build, *folders], check=True)


def print_table(runner, programs, pool):
    """Prints the rows of the programs. Returns what is wrong."""
    failed = []
    print(f"{'program':20} {'moment':24} " + " ".join(f"{column:>24}" for column in COLUMNS))
    for program, (rows, seconds, problem) in zip(programs, pool.map(runner.run_for_table, programs)):
        if problem:
            failed.append(f"{program.name}: {problem}")
        for row in rows:
            texts = []
            for column, (ours, theirs) in zip(COLUMNS, cells(row)):
                if theirs in (ours, None):
                    texts.append(f"{ours}")
                    continue
                texts.append(f"{ours} of {theirs}" if column == "lines" else f"{ours} != {theirs}")
                failed.append(f"{program.name}, {row['moment']}: {column}")
            print(f"{program.name:20} {row['moment']:24} " + " ".join(f"{text:>24}" for text in texts))
            for line, (ours, theirs) in lines_of(row).items():
                if theirs not in (ours, None):
                    print(f"  {line}: hbmprof {ours}, the framework {theirs}")
        print(f"{program.name:20} {seconds:.0f} s", flush=True)
    print("A cell with != has hbmprof's number and the framework's.\n")
    return failed


def print_checks(session, functions, pool):
    """Prints the result of each check. Returns what is wrong."""
    failed = []
    for check, problem in zip(functions, pool.map(lambda function: function(session), functions)):
        print(f"{'FAILED' if problem else 'passed':8} {check.__doc__}", flush=True)
        if problem:
            failed.append(f"{check.__name__}: {problem}")
    return failed


def print_calls(runner):
    """Prints the functions that the programs of each framework, and hbmprof in them, have called: the stubs, and those of
    the driver, as the table in README.md has them. Returns what that table does not list."""
    failed = []
    cells = re.findall(r"^\| ([a-z.]+) \|(.*)\|(.*)\|$", (HERE / "README.md").read_text(), re.M)
    listed = {name: set((stubs + functions).split()) for name, stubs, functions in cells}
    names = (runner.build / "tests/support/fake_cudart/fake_cuda_names.h").read_text().split()[1::3]
    for path in sorted(path for path in runner.calls.iterdir() if path.suffix != ".stubs"):
        stubs = path.with_name(f"{path.name}.stubs")
        called = [sorted(set(stubs.read_text().split()) if stubs.exists() else ()),
                  [name for name, is_called in sorted(zip(names, path.read_bytes())) if is_called]]
        called = [[name for name in some if name not in listed["all"]] for some in called]
        print(f"| {path.name} | {' | '.join(map(' '.join, called))} |")
        failed += [f"README.md does not list {name} for {path.name}"
                   for name in sum(called, []) if name not in listed.get(path.name, ())]
    return failed


def run_all(runner, session, programs, functions, names, threads):
    """Runs the programs and the checks with these names; without names, all. Returns the exit status."""
    shutil.rmtree(runner.calls, ignore_errors=True)
    runner.calls.mkdir()
    programs = {one: framework_of(one.name, one.arguments) for one in programs if one.name in names or not names}
    functions = {one: framework_of(one.__name__) for one in functions if one.__name__ in names or not names}
    for one, framework in {**programs, **functions}.items():
        if not runner.is_installed(framework):
            print(f"not run: {one.__doc__ if one in functions else one.name} ({framework} is not there)")
    programs, functions = ([one for one, framework in some.items() if runner.is_installed(framework)]
                           for some in (programs, functions))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        failed = print_table(runner, programs, pool) if programs else []
        failed += print_checks(session, functions, pool)
    failed += print_calls(runner)
    for message in failed:
        print(f"FAILED: {message}")
    return 1 if failed else 0


def main(build, frameworks, *names):
    make_doubles(build, frameworks)
    runner = Runner(build, frameworks)
    if names[:1] == ("--",):
        runner.calls.mkdir(exist_ok=True)
        environment = runner.environment(framework_of(*names[1:]), folder=runner.results)
        return subprocess.run(names[1:], env=environment).returncode
    return run_all(runner, checks.Session(runner), PROGRAMS, checks.CHECKS, names, threads=2)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*(pathlib.Path(folder).resolve() for folder in sys.argv[1:3]), *sys.argv[3:]))
