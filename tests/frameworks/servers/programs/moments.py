"""A plugin of vLLM: compares hbmprof's profile of a worker with PyTorch's numbers after each part of the worker, and
writes vLLM's own numbers into the file $FRAMEWORKS_RESULTS.numbers, a line of JSON each."""
import functools
import json
import os

PARTS = ("load_model", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model",
         "sample_tokens")


def write_numbers(part, worker, result):
    """The bytes of the model, and what `part` returned."""
    numbers = {"part": part, "model": worker.model_runner.model_memory_usage, "result": result}
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
        write_numbers(part, worker, result)
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
