"""A plugin of vLLM and SGLang: compares hbmprof's profile of a worker with PyTorch's numbers after each part of the
worker, and writes the server's own numbers into the file $FRAMEWORKS_RESULTS.numbers, a line of JSON each."""
import functools
import json
import os
import sys

PARTS = ("load_model", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model",
         "sample_tokens")
# With the memory from before, if SGLang measures what the function takes.
RUNNER, GRAPHS = "model_executor.model_runner.ModelRunner", "model_executor.model_runner_components.cuda_graph_setup"
SGLANG = ((f"{RUNNER}.load_model", True), (f"{RUNNER}.alloc_memory_pool", False), (f"{RUNNER}.init_cuda_graphs", False),
          (f"{GRAPHS}.capture_prefill_graph", True), (f"{GRAPHS}.capture_decode_graph", True),
          ("managers.tp_worker.TpModelWorker.forward_batch_generation", False))


def write_numbers(**numbers):
    with open(f"{os.environ['FRAMEWORKS_RESULTS']}.numbers", "a") as file:
        file.write(json.dumps(numbers, default=str) + "\n")


def with_moments(worker, owner, part, *, before=False):
    """Makes a method of `owner` compare when it has run first, and also before that."""
    import oracle
    import torch

    function = getattr(owner, part)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        setattr(owner, part, function)
        if before:
            torch.accelerator.empty_cache()  # as vLLM does before it measures
            oracle.moment(f"before {part}")
        result = function(*args, **kwargs)
        # vLLM resets PyTorch's peak before it loads the model.
        oracle.moment(part, without={"peak"} if part == "load_model" else ())
        write_numbers(part=part, model=worker.model_runner.model_memory_usage, result=result)
        return result

    setattr(owner, part, wrapper)


def register():
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    init_device = WorkerWrapperBase.init_device

    def init_device_with_moments(self):
        import torch
        from torch._inductor.codecache import PyCodeCache

        worker = self.worker
        torch.accelerator.set_device_index(worker.local_rank)
        # PyTorch would name the line of the model that generated code comes from, which is not in the stack.
        PyCodeCache.stack_frames_for_code = staticmethod(lambda path, line: None)
        import oracle  # noqa: F401, begins PyTorch's history

        init_device(self)
        for part in PARTS:
            with_moments(worker, worker, part)
        with_moments(worker, worker.model_runner, "capture_model", before=True)

    WorkerWrapperBase.init_device = init_device_with_moments


def register_in_sglang():
    if "sglang.srt.managers.scheduler" not in sys.modules:  # not the process with the GPU
        return
    import oracle
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def with_moments_once(part, is_measured):
        def call(function, *args, **kwargs):
            if part in parts:
                return function(*args, **kwargs)
            parts.add(part)
            if is_measured:
                torch.cuda.empty_cache()  # as SGLang does before it measures
                oracle.moment(f"before {part}")
            result = function(*args, **kwargs)
            if is_measured:
                torch.cuda.empty_cache()
            oracle.moment(part)
            if "model_runner" not in kwargs:
                runner = getattr(args[0], "model_runner", args[0])
                write_numbers(part=part, model=runner.weight_load_mem_usage, graphs=runner.graph_memory_usage,
                              cache=getattr(getattr(runner, "token_to_kv_pool", None), "mem_usage", None),
                              hooks=sorted(HookRegistry._patched))
            return result
        return call

    parts = set()
    for target, is_measured in SGLANG:
        HookRegistry.register(f"sglang.srt.{target}", with_moments_once(target.rpartition(".")[2], is_measured),
                              HookType.AROUND)
