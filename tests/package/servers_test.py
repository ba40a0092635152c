"""Runs the plugins for vLLM and SGLang that the wheel has, and the line of docs/python.md for Ray, with stand-ins.

The plugins are found by their entry points, as the servers find them. Ray starts a worker as `bash -c "exec
PY_EXECUTABLE SCRIPT ARGUMENTS"`, and ends it with SIGTERM.
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

DEVICE = '''
import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0


def allocate(size):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0


sys.modules["__main__"].allocate = allocate
'''
WORKER = DEVICE + '''
from vllm.v1.worker.worker_base import WorkerWrapperBase

worker = WorkerWrapperBase()
worker.init_worker([{}])
assert worker.init_device(1, device="cuda") == (1, "cuda")
worker.load_model()
worker.determine_available_memory()
worker.initialize_from_config(None)
worker.compile_or_warm_up_model()
assert worker.execute_model(batch=3) == 3
assert worker.sample_tokens() == 4
allocate(9)
print("ready", *sys.argv[1:], flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
'''
VLLM = '''
import importlib.metadata

import __main__


class Runner:
    model_memory_usage = float("nan")  # no counter

    def capture_model(self):
        __main__.allocate(7)


class Worker:
    def init_device(self):
        __main__.allocate(600000)
        self.model_runner = Runner()

    def load_model(self):
        __main__.allocate(1000)

    def determine_available_memory(self):
        __main__.allocate(200)

    def initialize_from_config(self, config):
        __main__.allocate(30)

    def compile_or_warm_up_model(self):
        __main__.allocate(50)
        self.model_runner.capture_model()

    def execute_model(self, batch):
        __main__.allocate(4)
        return batch

    def sample_tokens(self):
        __main__.allocate(80000)
        return 4


class WorkerWrapperBase:
    def init_worker(self, all_kwargs):
        # In a process of its own, a worker loads the plugins here. vLLM may load a plugin more than once.
        for plugin in importlib.metadata.entry_points(group="vllm.general_plugins"):
            plugin.load()()
            plugin.load()()
        self.worker = Worker()

    # Today's has no arguments and returns nothing.
    def init_device(self, rank, *, device):
        self.worker.init_device()
        return rank, device

    def __getattr__(self, name):
        return getattr(self.worker, name)
'''
# What SGLang has of each module; its registry calls a hook with the function and the arguments.
SGLANG = {
    "plugins/hook_registry": '''
import enum
import functools
import importlib
import pkgutil

HookType = enum.Enum("HookType", "AROUND")


class HookRegistry:
    @staticmethod
    def register(target, hook, kind):
        owner, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(owner)
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return hook(function, *args, **kwargs)

        assert kind == HookType.AROUND
        setattr(owner, name, wrapper)
''',
    "model_executor/model_runner_components/cuda_graph_setup": '''
import __main__


def capture_decode_graph(*, model_runner):
    __main__.allocate(7)
''',
    "model_executor/model_runner": '''
import __main__
from sglang.srt.model_executor.model_runner_components import cuda_graph_setup


class Pool:
    mem_usage = 30 / 2**30


class ModelRunner:
    def __init__(self, size):
        self.size = size
        self.load_model()

    def load_model(self):
        __main__.allocate(self.size)
        self.weight_load_mem_usage = self.size / 2**30

    def alloc_memory_pool(self, config, *, layout=None):
        __main__.allocate(30)
        self.token_to_kv_pool = Pool()

    def init_cuda_graphs(self):
        __main__.allocate(50)
        cuda_graph_setup.capture_decode_graph(model_runner=self)
        self.graph_memory_usage = {"decode": 5 / 2**30, "prefill": 2 / 2**30}

    def prewarm_sampling(self):
        pass
''',
    "managers/scheduler": '''
import __main__


class Scheduler:
    def __init__(self, arguments, *, port):
        from sglang.srt.model_executor.model_runner import ModelRunner

        __main__.allocate(600000)
        self.runners = [ModelRunner(900), ModelRunner(100)]  # the second is a draft model's
        self.runners[0].alloc_memory_pool(None, layout=arguments)
        self.runners[0].init_cuda_graphs()
        self.runners[1].token_to_kv_pool = self.runners[0].token_to_kv_pool
        self.runners[1].prewarm_sampling()
        self.port = port

    def run_event_loop(self):
        __main__.allocate(80004)
        raise SystemExit(0)
''',
}
SCHEDULER = DEVICE + '''
import importlib.metadata

(plugin,) = importlib.metadata.entry_points(group="sglang.srt.plugins")
plugin.load()()
assert not any(name.startswith("sglang.srt") for name in sys.modules), "imported in a process without a scheduler"
from sglang.srt.managers.scheduler import Scheduler

plugin.load()()
scheduler = Scheduler(1, port=2)
assert scheduler.port == 2
try:
    scheduler.run_event_loop()
except SystemExit:
    allocate(9)
'''


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def phases(folder):
    (profile,) = pathlib.Path(folder).glob("*.pb.gz")
    top = subprocess.run(["hbmprof", "top", "--by", "phase", "--json", profile], capture_output=True, text=True, check=True)
    return {row["labels"]["phase"] or "-": row["flat"] for row in json.loads(top.stdout)["rows"]}


def estimates(folder):
    explained = subprocess.run(["hbmprof", "explain", "--json", *pathlib.Path(folder).glob("*.pb.gz")],
                               capture_output=True, text=True).stdout
    return {row["phase"]: row["estimated"] for row in json.loads(explained)["sources"][0]["phases"]
            if "estimated" in row}


def main():
    sources = pathlib.Path(__file__).parents[2]
    page = (sources / "docs" / "python.md").read_text()
    executable = re.search(r'"py_executable": "(.*?)"', page)[1]
    expected = {"init": 600000, "load": 1000, "profile": 200, "kv cache": 30, "warm up": 50, "capture": 7, "serve": 80004,
                "-": 9}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, "debian/metadata.py", folder, "1"], cwd=sources, check=True)
        for module in ("vllm", "vllm/v1", "vllm/v1/worker"):
            write(folder / module / "__init__.py", "")
        write(folder / "vllm/v1/worker/worker_base.py", VLLM)
        write(folder / "worker.py", WORKER)
        # vLLM: `hbmprof run -- vllm serve ...` starts its workers itself.
        subprocess.run(["hbmprof", "run", "-o", folder / "vllm-profiles", "--", sys.executable, folder / "worker.py"],
                       check=True)
        assert phases(folder / "vllm-profiles") == expected, phases(folder / "vllm-profiles")
        # A version of vLLM without this module.
        other = "import sys, hbmprof.vllm as v; sys.modules['vllm.v1.worker.worker_base'] = None; v.register()"
        subprocess.run(["hbmprof", "run", "-o", folder / "none", "--", sys.executable, "-c", other], check=True)

        # SGLang, and what its runners say.
        for module, text in SGLANG.items():
            write(folder / f"sglang/srt/{module}.py", text)
        write(folder / "scheduler.py", SCHEDULER)
        subprocess.run(["hbmprof", "run", "-o", folder / "sglang-profiles", "--", sys.executable,
                        folder / "scheduler.py"], check=True)
        without_profile = {phase: size for phase, size in expected.items() if phase != "profile"}
        assert phases(folder / "sglang-profiles") == without_profile, phases(folder / "sglang-profiles")
        assert estimates(folder / "sglang-profiles") == {"load": 1000, "kv cache": 30, "capture": 7}

        # Ray.
        executable = executable.replace("/tmp/hbmprof-profiles", str(folder / "ray-profiles")).replace("python3", sys.executable)
        ray = subprocess.Popen(["bash", "-c", f"exec {executable} {folder / 'worker.py'} --node-ip=10.0.0.1 wait"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert ray.stdout.readline() == "ready --node-ip=10.0.0.1 wait\n"
        ray.send_signal(signal.SIGTERM)
        assert ray.wait(60) == -signal.SIGTERM, ray.returncode
        ray.stdin.close()
        for _ in range(100):
            if list((folder / "ray-profiles").glob("*.pb.gz")):
                break
            time.sleep(0.1)
        assert phases(folder / "ray-profiles") == expected, phases(folder / "ray-profiles")
    print("servers_test: passed")


main()
