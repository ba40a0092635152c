"""Phases of SGLang's schedulers, each of which drives a GPU: as hbmprof.vllm, for `hbmprof explain`.

SGLang calls `register` in each of its processes, because the wheel names it in the entry point group
sglang.srt.plugins. The environment variable SGLANG_PLUGINS of SGLang selects plugins by name; this one is `hbmprof`.
"""

import pkgutil
import sys

import hbmprof

SCHEDULER = "sglang.srt.managers.scheduler"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
GRAPHS = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"
# An inner phase hides the outer one.
PHASES = ((f"{SCHEDULER}.Scheduler.__init__", "init"),
          (f"{RUNNER}.load_model", "load"), (f"{RUNNER}.finalize_startup_weight_load", "load"),
          (f"{RUNNER}.alloc_memory_pool", "kv cache"), (f"{RUNNER}.post_capture_resize_kv_pool", "kv cache"),
          (f"{RUNNER}.init_cuda_graphs", "warm up"), (f"{RUNNER}.prewarm_sampling", "warm up"),
          (f"{GRAPHS}.capture_prefill_graph", "capture"), (f"{GRAPHS}.capture_decode_graph", "capture"),
          (f"{SCHEDULER}.Scheduler.run_event_loop", "serve"))
GIB = 2**30


def _cache(pool):
    # A pool that takes its memory after the CUDA graphs counts the addresses that it has reserved in mem_usage.
    return pool.post_capture_backed_bytes if getattr(pool, "post_capture_active", False) else pool.mem_usage * GIB


# What SGLang says of a phase: whose number it is, and the bytes. A draft model has a runner of its own, and may share
# the pool.
NUMBERS = {"load": lambda runner: (runner, runner.weight_load_mem_usage * GIB),
           "kv cache": lambda runner: (runner.token_to_kv_pool, _cache(runner.token_to_kv_pool)),
           "capture": lambda runner: (runner, sum(runner.graph_memory_usage.values()) * GIB)}
_numbers = {phase: {} for phase in NUMBERS}


def _set_estimates(runner):
    """Sets the counter `estimate:PHASE` of each number that there is: the sum of all runners."""
    for phase, of_runner in NUMBERS.items():
        try:
            owner, size = of_runner(runner)
            _numbers[phase][id(owner)] = int(size)
            if sum(_numbers[phase].values()):
                hbmprof.counter(f"estimate:{phase}", sum(_numbers[phase].values()))
        except Exception:  # not there yet, or not in this version; it must not reach the server
            pass


def _hook(phase):
    def call(function, *args, **kwargs):
        with hbmprof.phase(phase):
            result = function(*args, **kwargs)
        if args:
            _set_estimates(args[0])
        return result
    return call


def register():
    """Adds the phases to what the scheduler of this process will call. Without hbmprof's library, and in a process
    without a scheduler, does nothing."""
    if SCHEDULER not in sys.modules:  # it would take the other processes seconds to import
        return
    try:
        hbmprof.version()
    except hbmprof.Error:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, phase in PHASES:
        try:
            pkgutil.resolve_name(target)
        except Exception:  # not in this version; the registry would print a traceback
            continue
        HookRegistry.register(target, _hook(phase), HookType.AROUND)
