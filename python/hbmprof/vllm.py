"""Phases of vLLM's workers: `hbmprof explain` shows what loading the model, the KV cache or serving has allocated, and
what vLLM expects of them.

vLLM calls `register` in each of its processes, because the wheel names it in the entry point group
vllm.general_plugins. The environment variable VLLM_PLUGINS of vLLM selects plugins by name; this one is `hbmprof`.
"""

import contextlib
import functools

import hbmprof

# The methods of a worker, after init_device, and of its model runner. An inner phase hides the outer one.
WORKER = (("load_model", "load"), ("determine_available_memory", "profile"), ("initialize_from_config", "kv cache"),
          ("compile_or_warm_up_model", "warm up"), ("execute_model", "serve"), ("sample_tokens", "serve"))
RUNNER = (("capture_model", "capture"),)
# Where vLLM keeps what it expects of a phase, in bytes: the attribute of the worker or of its model runner.
ESTIMATES = {"load": "model_memory_usage", "kv cache": "available_kv_cache_memory_bytes",
             "capture": "cudagraph_memory_estimate"}


def _add_phases(owner, phases):
    for name, phase in phases:
        if hasattr(owner, name):
            setattr(owner, name, hbmprof.phase(phase)(getattr(owner, name)))


def _add_estimates(worker):
    """After each of its methods that can compute one, sets the counter `estimate:PHASE` of each estimate."""
    def wrap(method):
        @functools.wraps(method)
        def with_estimates(*args, **kwargs):
            result = method(*args, **kwargs)
            for phase, attribute in ESTIMATES.items():
                for owner in (worker, getattr(worker, "model_runner", None)):
                    with contextlib.suppress(Exception):  # the server must not fail
                        if isinstance(bytes_ := getattr(owner, attribute, None), (int, float)):
                            hbmprof.counter(f"estimate:{phase}", bytes_)
            return result
        return with_estimates

    for name in ("load_model", "determine_available_memory"):
        if hasattr(worker, name):
            setattr(worker, name, wrap(getattr(worker, name)))


def register():
    """Adds the phases to each worker whose device this process initializes from now on. Without hbmprof's library, and
    in another version of vLLM, does nothing."""
    try:
        hbmprof.version()
        # The module of the worker itself is not imported here, which would take the API server seconds.
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        # Not init_worker: in a process of its own, a worker calls register() there.
        init_device = WorkerWrapperBase.init_device
    except Exception:  # vLLM would not start
        return

    @functools.wraps(init_device)
    def init_device_with_phases(self, *args, **kwargs):
        with hbmprof.phase("init"):
            result = init_device(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            _add_estimates(self.worker)
            _add_phases(self.worker, WORKER)
            _add_phases(getattr(self.worker, "model_runner", None), RUNNER)
        return result

    WorkerWrapperBase.init_device = init_device_with_phases
