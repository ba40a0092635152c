"""Phases of vLLM's workers: `hbmprof top --by phase` shows what loading the model, the KV cache or serving has allocated.

vLLM calls `register` in each of its processes, because the wheel names it in the entry point group
vllm.general_plugins. The environment variable VLLM_PLUGINS of vLLM selects plugins by name; this one is `hbmprof`.
"""

import functools

import hbmprof

# The methods of a worker and of its model runner. An inner phase hides the outer one.
WORKER = (("init_device", "init"), ("load_model", "load"), ("determine_available_memory", "profile"),
          ("initialize_from_config", "kv cache"), ("compile_or_warm_up_model", "warm up"), ("execute_model", "serve"),
          ("sample_tokens", "serve"))
RUNNER = (("capture_model", "capture"),)


def _add_phases(owner, phases):
    for name, phase in phases:
        if hasattr(owner, name):
            setattr(owner, name, hbmprof.phase(phase)(getattr(owner, name)))


def register():
    """Adds the phases to each worker that this process makes from now on. Without hbmprof's library, does nothing."""
    try:
        hbmprof.version()
    except hbmprof.Error:
        return
    # The module of the worker itself is not imported here, which would take the API server seconds.
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    init_worker = WorkerWrapperBase.init_worker

    @functools.wraps(init_worker)
    def init_worker_with_phases(self, *args, **kwargs):
        init_worker(self, *args, **kwargs)
        worker = self.worker
        init_device = worker.init_device

        @functools.wraps(init_device)
        def init_device_and_runner(*args, **kwargs):
            result = init_device(*args, **kwargs)
            _add_phases(getattr(worker, "model_runner", None), RUNNER)
            return result

        worker.init_device = init_device_and_runner
        _add_phases(worker, WORKER)

    WorkerWrapperBase.init_worker = init_worker_with_phases
