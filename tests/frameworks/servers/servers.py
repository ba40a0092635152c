#!/usr/bin/env python3
"""Runs whole vLLM, SGLang and llama.cpp under hbmprof on the tests' substitute for CUDA, and compares their memory with
what PyTorch and the servers' own logs say.

usage: servers.py BUILD SERVERS [NAME...]

BUILD: a folder of a preset with the command, the injected library and the substitute. SERVERS: the folder with the
installed packages, as scripts/test.sh servers leaves it; doubles, models, caches and results go there too. NAME: of a
program of the table or of a check. Prints what ../run.py prints, and exits as it does.
"""
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import checks  # noqa: E402
import run  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 4 << 30
SEGMENT = 2 * MIB  # PyTorch's segments are a multiple of it
# Of the model in programs/make_model.py: keys and values of 2 bytes.
BYTES_OF_A_TOKEN = 2 * 8 * 4 * 64 * 2
PARTS = {"init", "load", "profile", "kv cache", "warm up", "capture", "serve"}
PROGRAMS = [run.Program("vLLM", "offline.py"), run.Program("vLLM, 2 ranks", "offline.py", devices=2),
            run.Program("SGLang", "offline_sglang.py"),
            run.Program("SGLang, 2 ranks", "offline_sglang.py", devices=2)]
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # The second model runner asks a kernel how many tokens there are.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # FlashInfer's sampler is compiled with nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # FlashInfer's normalization contains the CUDA runtime, which refuses a substitute of its driver.
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
}


class Servers(run.Runner):
    """Runs servers under hbmprof; each run has a folder of its own in SERVERS/results."""

    def __init__(self, build, servers):
        super().__init__(build, servers)
        self.plugins = self.results / "plugins/site-packages"

    def environment(self, server, *, folder, devices=1, variables=()):
        packages = self.frameworks / server / "site-packages"
        base = super().environment(server, devices=devices, folder=folder)
        return {
            **base,
            **SETTINGS,
            "PATH": f"{packages / 'bin'}:{base['PATH']}",
            # A file NAME.pth adds the last folder where a package is installed.
            "PYTHONPATH": f"{self.plugins}:{base['PYTHONPATH']}:{HERE / 'programs'}:"
                          f"{packages / 'nvidia_cutlass_dsl/dsl_packages'}",
            "PYTHONPYCACHEPREFIX": str(self.frameworks / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
            "HOME": str(self.frameworks / "home"),
            "FAKE_CUDA_CAPACITY": str(CAPACITY),
            "FRAMEWORKS_PROGRAMS": str(packages / server),
            **dict(variables),
        }

    def install_plugins(self):
        """Makes a folder with hbmprof's Python package as the wheel has it, and with the plugin `moments`."""
        shutil.rmtree(self.plugins, ignore_errors=True)
        shutil.copytree(run.SOURCES / "python/hbmprof", self.plugins / "hbmprof",
                        ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "debian/metadata.py", self.plugins, "0"], cwd=run.SOURCES, check=True)
        folder = self.plugins / "moments-0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: moments\nVersion: 0\n")
        (folder / "entry_points.txt").write_text("[vllm.general_plugins]\nmoments = moments:register\n"
                                                 "[sglang.srt.plugins]\nmoments = moments:register_in_sglang\n")

    def make(self, server, name):
        """Makes a model with a program, once. Returns its path."""
        path = self.frameworks / name
        if not path.exists():
            program = HERE / "programs" / f"make_{name}.py"
            subprocess.run([sys.executable, program, path], check=True, env=self.environment(server, folder=self.results))
        return path

    def start(self, server, name, command, **options):
        """Starts a command under hbmprof. Returns the process and its folder."""
        folder = self.results / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with open(folder / "output", "w") as output:
            process = subprocess.Popen([self.command, "run", "-o", folder / "profiles", "--", *command], cwd=folder,
                                       env=self.environment(server, folder=folder, **options), stdout=output,
                                       stderr=output)
        return process, folder

    def run(self, server, name, command, **options):
        """Returns the exit status and the folder of a command under hbmprof."""
        process, folder = self.start(server, name, command, **options)
        return process.wait(timeout=1200), folder

    def run_program(self, program, name):
        server = run.framework_of(program.name)
        command = [sys.executable, HERE / "programs" / program.arguments, self.make(server, "model")]
        status, _ = self.run(server, name, [*command, *([str(program.devices)] if program.devices > 1 else [])],
                             variables={"VLLM_PLUGINS": "hbmprof,moments", "SGLANG_PLUGINS": "hbmprof,moments"},
                             devices=program.devices)
        return status

    @functools.cached_property
    def llama(self):
        """The output of llama.cpp, and its profile."""
        model = self.make("llama.cpp", "gguf")
        _, folder = self.run("llama.cpp", "llama.cpp", [
            "cyllama", "generate", "--verbose", "-m", model, "-ngl", "99", "-c", "4096", "-n", "4", "-p", "w1 w2"])
        return (folder / "output").read_text(), *folder.glob("profiles/*.gz")

    @functools.lru_cache
    def serve(self, *options):
        """Starts `vllm serve`, asks for tokens, sends SIGTERM to hbmprof. Returns the output, and the profiles."""
        return self.ask("vllm", " ".join(["serve", *options]), [
            "vllm", "serve", self.make("vllm", "model"), "--max-model-len=2048", "--max-num-seqs=16",
            "--gpu-memory-utilization=0.8", '--kernel-config={"enable_jit_warmup": false}', *options])

    @functools.cached_property
    def sglang(self):
        """The same for `sglang serve`."""
        return self.ask("sglang", "sglang serve", [
            "sglang", "serve", "--model-path", self.make("sglang", "model"), "--context-length=2048",
            "--max-running-requests=16", "--mem-fraction-static=0.7", "--attention-backend=triton",
            "--sampling-backend=pytorch", "--cuda-graph-max-bs-prefill=64"])

    def ask(self, server, name, command):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process, folder = self.start(server, name, [
            *command, "--served-model-name=m", "--load-format=dummy", "--host=127.0.0.1", f"--port={port}"],
            variables={"VLLM_PLUGINS": "hbmprof", "SGLANG_PLUGINS": "hbmprof"})
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 900
        while not answers(f"{url}/health") and process.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        question = {"model": "m", "prompt": "w5 w7 w9", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        for _ in range(2):
            assert answers(f"{url}/v1/completions", question), f"no tokens; see {folder / 'output'}"
        process.send_signal(signal.SIGTERM)
        process.wait(150)
        return (folder / "output").read_text(), sorted(folder.glob("profiles/*.gz"))


def answers(url, question=None):
    request = urllib.request.Request(url, json.dumps(question).encode() if question else None,
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


class Session(checks.Session):
    """What a check gets: hbmprof's command, and the results of the servers."""

    def rows(self, *arguments):
        """The rows of `top` that hold memory, as {function or labels: bytes}."""
        rows = self.top(*arguments)["rows"]
        return {row.get("function") or ",".join(row["labels"].values()): row["flat"] for row in rows if row["flat"]}

    def moments(self, program):
        """The profiles of a program in the table, by moment, and vLLM's numbers, by part."""
        folder = self.runner.results / program
        names = [json.loads(line)["moment"] for line in (folder / "rows").read_text().splitlines()]
        numbers = [json.loads(line) for line in (folder / "rows.numbers").read_text().splitlines()]
        profiles = sorted(folder.glob("rows.*.gz"), key=os.path.getmtime)
        return dict(zip(names, profiles)), {one["part"]: one for one in numbers}

    def last_moments(self, program):
        """The last numbers of the server, and the last profile of each process."""
        folder = self.runner.results / program
        last = {path.name.split(".")[1]: path for path in sorted(folder.glob("rows.*.gz"), key=os.path.getmtime)}
        return json.loads((folder / "rows.numbers").read_text().splitlines()[-1]), list(last.values())

    def estimates(self, profile):
        """The server's own number of each phase that has one."""
        phases = json.loads(self.command("explain", "--json", profile))["sources"][0]["phases"]
        return {phase["phase"]: phase["estimated"] for phase in phases if "estimated" in phase}


def differing(pairs):
    """Returns the pairs {what: (hbmprof's, the server's)} that are not equal, as text; None if all are."""
    return "; ".join(f"{what}: {ours} != {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs) or None


def llama_rows(session):
    """llama.cpp's weights, KV cache and compute buffer have rows of their own, with the sizes of its log."""
    output, profile = session.runner.llama
    size = r" buffer size (?:=|is) +([\d.]+) MiB"
    logged = {"load_tensors": r"load_tensors: +CUDA0 model" + size, "llama_kv_cache": r"llama_kv_cache: +CUDA0 KV" + size,
              "graph_reserve": r"~llama_context: +CUDA0 compute" + size}
    rows = session.rows("--type", "peak_space", "-w", "kind=device", profile)
    names = {"load_tensors": "llama_model_base::load_tensors", "llama_kv_cache": "llama_kv_cache::llama_kv_cache",
             "graph_reserve": "llama_context::graph_reserve"}
    pairs = {}
    for what, pattern in logged.items():
        text = re.search(pattern, output)[1]
        digits = len(text.partition(".")[2])
        pairs[what] = (f"{rows.pop(names[what], 0) / MIB:.{digits}f}", text)
    return differing({**pairs, "other functions": (rows, {})})


def llama_ggml(session):
    """No row of llama.cpp is a function of ggml."""
    _, profile = session.runner.llama
    others = [row["where"] for row in session.top("--type", "peak_space", profile)["rows"]
              if row["flat"] and "libggml" in row["where"]]
    return f"rows of ggml: {others}" if others else None


def device_bytes(session, profile):
    """The bytes of the device that are in use, and their peak."""
    return map(int, re.search(r"^GPU:0: in use (\d+) B of .*, peak (\d+) B", session.command("top", "--exact", profile),
                              re.M).groups())


def vllm_numbers(session):
    """vLLM's own numbers of its model, KV cache and CUDA graphs are those of hbmprof."""
    profiles, numbers = session.moments("vLLM")
    output = session.output("vLLM")
    model = session.rows("--by", "phase", "-w", "kind=device", "-w", "phase=load", profiles["load_model"])["load"]
    cache = session.rows("--by", "phase", "-w", "kind=device", "-w", "phase=kv cache",
                         profiles["sample_tokens"])["kv cache"]
    # vLLM measures before it empties PyTorch's cache, which is at the peak.
    before, _ = device_bytes(session, profiles["before capture_model"])
    _, peak = device_bytes(session, profiles["capture_model"])
    captured = peak - before
    tokens = int(re.search(r"GPU KV cache size: ([\d,]+) tokens", output)[1].replace(",", ""))
    # A tensor that takes a whole segment, but for less than 1 MiB, gets the whole segment.
    return differing({
        "model": (model, numbers["load_model"]["model"]),
        "model in the log": (f"{round(model / GIB, 2)}", re.search(r"Model loading took ([\d.]+) GiB", output)[1]),
        "KV cache in the log": (cache // SEGMENT, math.ceil(tokens * BYTES_OF_A_TOKEN / SEGMENT)),
        "CUDA graphs": (captured, numbers["capture_model"]["result"]),
        "CUDA graphs in the log": (f"{round(captured / GIB, 2)}",
                                   re.search(r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)", output)[1]),
    })


def vllm_phases(session):
    """Each buffer of a worker has a phase, also those of init_device and sample_tokens; explain has vLLM's estimates."""
    profiles, numbers = session.moments("vLLM")
    phases = session.rows("--by", "phase", "-w", "kind=device", profiles["sample_tokens"])
    estimated = session.estimates(profiles["sample_tokens"])
    return differing({"phases": (set(phases), PARTS - {"warm up"}),
                      "estimated, load": (estimated.pop("load"), numbers["load_model"]["model"]),
                      "estimated": (set(estimated), {"kv cache", "capture"})})


def vllm_workers(session):
    """Each of two workers that are processes of their own has phases, and its weights have the bytes of vLLM."""
    numbers, profiles = session.last_moments("vLLM-2-ranks")
    phases = [session.rows("--by", "phase", "-w", "kind=device", profile) for profile in profiles]
    return differing({"phases": ([set(one) for one in phases], [PARTS - {"warm up"}] * 2),
                      "weights": ([one.get("load") for one in phases], [numbers["model"]] * 2)})


def vllm_generated_code(session):
    """No row of `vllm serve` is code that torch.compile has generated."""
    _, profiles = session.runner.serve()
    files = session.top("--by", "file", *profiles)["rows"]
    others = [row["file"] for row in files
              if row["flat"] and re.search(r"/torch_compile_cache/|/inductor_cache/|codegen|<string>", row["file"])]
    return f"rows of generated code: {others}" if others else None


def vllm_rows(session):
    """`vllm serve` shows its own functions: the allocation of the KV cache, and of the weights."""
    _, profiles = session.runner.serve()
    rows = session.rows("-w", "kind=device", *profiles)
    missing = {"allocate_kv_cache", "UnquantizedLinearMethod.create_weights"} - set(rows)
    return f"no {missing} in {rows}" if missing else None


def vllm_is_killed(session):
    """SIGTERM to `hbmprof run -- vllm serve`, which kills its engine at once: a profile is there, and says so."""
    output, profiles = session.runner.serve()
    said = r"hbmprof: process \d+ \(VLLM::EngineCor\) was killed before it wrote a profile; its profile is of the moment"
    if len(profiles) != 1 or not re.search(said, output) or "still runs" in output:
        return output[-1500:]
    return None if session.rows("-w", "kind=device", *profiles).get("allocate_kv_cache") else "the profile is empty"


def vllm_has_time(session):
    """With --shutdown-timeout, the engine writes its own profile."""
    output, profiles = session.runner.serve("--shutdown-timeout=100", "--enforce-eager")
    wrong = len(profiles) != 1 or "was killed" in output or "still runs" in output
    return output[-1500:] if wrong else None


def sglang_numbers(session):
    """SGLang's own numbers of its model, KV cache and CUDA graphs are those of hbmprof."""
    profiles, numbers = session.moments("SGLang")
    output = session.output("SGLang")
    last = numbers["forward_batch_generation"]

    def taken(part):
        (before, _), (after, _) = (device_bytes(session, profiles[moment]) for moment in (f"before {part}", part))
        return after - before

    cache = sum(session.rows("--focus", "MHATokenToKVPool._create_buffers_normal", "-w", "kind=device",
                             "-w", "phase=kv cache", profiles["alloc_memory_pool"]).values())
    halves = re.search(r"K size: ([\d.]+) GB, V size: ([\d.]+) GB", output).groups()
    return differing({
        "model": (taken("load_model"), last["model"] * GIB),
        "model in the log": (f"{taken('load_model') / GIB:.2f}",
                             re.search(r"Load weight end.* mem usage=([\d.]+) GB", output)[1]),
        "KV cache": (cache, last["cache"] * GIB),
        "KV cache in the log": ((f"{cache / 2 / GIB:.2f}",) * 2, halves),
        **{f"graphs of {part}": (taken(f"capture_{part}_graph"), last["graphs"][part] * GIB)
           for part in ("prefill", "decode")},
    })


def sglang_estimates(numbers):
    return {"load": numbers["model"] * GIB, "kv cache": numbers["cache"] * GIB,
            "capture": sum(numbers["graphs"].values()) * GIB}


def sglang_phases(session):
    """Each buffer of a scheduler has a phase; explain has SGLang's numbers; no function of the plugin was missing."""
    sys.path.append(str(run.SOURCES / "python"))
    from hbmprof.sglang import PHASES

    profiles, numbers = session.moments("SGLang")
    profile, last = profiles["forward_batch_generation"], numbers["forward_batch_generation"]
    phases = session.rows("--by", "phase", "-w", "kind=device", profile)
    return differing({"phases": (set(phases), PARTS - {"profile"}),
                      "missing": ({target for target, _ in PHASES} - set(last["hooks"]), set()),
                      "estimated": (session.estimates(profile), sglang_estimates(last))})


def sglang_workers(session):
    """Each of two schedulers of SGLang has phases, and SGLang's numbers of them."""
    numbers, profiles = session.last_moments("SGLang-2-ranks")
    phases = [set(session.rows("--by", "phase", "-w", "kind=device", profile)) for profile in profiles]
    return differing({"phases": (phases, [PARTS - {"profile"}] * 2),
                      "estimated": ([*map(session.estimates, profiles)], [sglang_estimates(numbers)] * 2)})


def sglang_rows(session):
    """`sglang serve` shows its own functions and phases, and SIGTERM to `hbmprof run` leaves a profile."""
    output, profiles = session.runner.sglang
    if len(profiles) != 1:
        return output[-1500:]
    rows = session.rows("-w", "kind=device", *profiles)
    missing = {"MHATokenToKVPool._create_buffers_normal.<locals>._zeros",
               "UnquantizedLinearMethod.create_weights"} - set(rows)
    phases = set(session.rows("--by", "phase", "-w", "kind=device", *profiles))
    return f"no {missing} in {rows}" if missing else differing({"phases": (phases, PARTS - {"profile"})})


CHECKS = [llama_rows, llama_ggml, vllm_numbers, vllm_phases, vllm_workers, vllm_is_killed, vllm_rows,
          vllm_generated_code, vllm_has_time, sglang_numbers, sglang_phases, sglang_workers, sglang_rows]


def main(build, servers, *names):
    run.make_doubles(build, servers)
    runner = Servers(build, servers)
    runner.install_plugins()
    return run.run_all(runner, Session(runner), PROGRAMS, CHECKS, names, threads=1)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*(pathlib.Path(folder).resolve() for folder in sys.argv[1:3]), *sys.argv[3:]))
