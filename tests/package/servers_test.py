"""Runs the plugin for vLLM that the wheel has, and the line of docs/python.md for Ray, with stand-ins for both.

The plugin is found by its entry point, as vLLM finds it. Ray starts a worker as `bash -c "exec PY_EXECUTABLE SCRIPT
ARGUMENTS"`, and ends it with SIGTERM.
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

WORKER = '''
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


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def phases(folder):
    (profile,) = pathlib.Path(folder).glob("*.pb.gz")
    top = subprocess.run(["hbmprof", "top", "--by", "phase", "--json", profile], capture_output=True, text=True, check=True)
    return {row["labels"]["phase"] or "-": row["flat"] for row in json.loads(top.stdout)["rows"]}


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
