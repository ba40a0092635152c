"""Trains a small model under `hbmprof run`, with and without hbmprof.torch.watch, and compares the labels in the profile.

Its operators allocate with the CUDA driver. It uses PyTorch if that is installed, else stand_in/torch.
"""
import copy
import ctypes
import json
import pathlib
import subprocess
import sys
import threading

import hbmprof
import hbmprof.torch

assert "torch" not in sys.modules, "PyTorch is imported only when it is used"
try:
    import torch
except ImportError:
    sys.path.append(str(pathlib.Path(__file__).with_name("stand_in")))
    import torch
IS_REAL = "stand-in" not in torch.__version__
print("PyTorch:", torch.__version__)

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0


def allocate(size):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


class Scale(torch.autograd.Function):
    """x * w. Allocates `size` bytes in the forward pass, and twice as many in the backward pass."""

    @staticmethod
    def forward(ctx, x, w, size):
        allocate(size)
        ctx.size = size
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        allocate(2 * ctx.size)
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x, None


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.fails = False
        self.w = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        if self.fails:
            raise RuntimeError("in forward")
        return Scale.apply(x, self.w, self.size)


class Rerun(torch.autograd.Function):
    """Runs a module again in the backward pass, with a backward pass of its own, as reentrant checkpointing does. Then it
    allocates `size` bytes."""

    @staticmethod
    def forward(ctx, x, module, size):
        ctx.module, ctx.size = module, size
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        again = x.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(again)
        output.backward()
        allocate(ctx.size)
        return again.grad * gradient, None, None


class Passed(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.w = size, torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return Scale.apply(x, self.w, self.size)


class Checkpointed(torch.nn.Module):
    def __init__(self, module, size):
        super().__init__()
        self.module, self.size = module, size

    def forward(self, x):
        return Rerun.apply(x, self.module, self.size)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Layer(1)
        self.w = torch.nn.Parameter(torch.tensor(0.5))
        self.b = Layer(100)

    def forward(self, x):
        return self.b(Scale.apply(self.a(x), self.w, 10))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.shared = next(iter(self.blocks)).a  # the same module at two paths

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.shared(x)


class Descent(torch.optim.Optimizer):
    """Allocates 1,000 bytes for each parameter in its first step."""

    fails = False

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.has_state = False

    def step(self):
        if not self.has_state:
            allocate(1000)
        self.has_state = True
        if self.fails:
            raise RuntimeError("in step")


def rows(name, by, *more):
    hbmprof.save(name)
    top = subprocess.run(["hbmprof", "top", "--by", by, "--json", "-n", "0", *more, name], capture_output=True, text=True,
                         check=True)
    found = json.loads(top.stdout)["rows"]
    return {row["labels"][by] or "-": row["flat"] for row in found if row["flat"]}


def expect(what, found, expected):
    assert found == expected, f"{what}: {found}, not {expected}"


def step(model, optimizer):
    output = model(torch.tensor(3.0))
    output.backward()
    optimizer.step()
    return output.item(), [parameter.grad.item() for parameter in model.parameters()]


with hbmprof.tag("category", "parameters"):
    allocate(50)
    model = Net()
plain = Net()
optimizer = Descent(model.parameters())
with hbmprof.torch.watch(model, optimizer):
    watched = step(model, optimizer)
    copied = copy.deepcopy(model)
before = rows("labels.pb.gz", "category")
expect("results", watched, step(plain, Descent(plain.parameters())))
expect("categories", before, {"parameters": 50, "activations and workspaces": 223, "gradients and workspaces": 446, "optimizer state": 1000})
expect("phases", rows("labels.pb.gz", "phase", "-w", "category=gradients and workspaces"), {"backward": 446})
expect("forward", rows("labels.pb.gz", "module", "-w", "phase=forward"),
       {"blocks.0.a": 2, "blocks.0": 10, "blocks.0.b": 100, "blocks.1.a": 1, "blocks.1": 10, "blocks.1.b": 100})
expect("backward", rows("labels.pb.gz", "module", "-w", "phase=backward"),
       {"blocks.0.a": 4, "blocks.0": 20, "blocks.0.b": 200, "blocks.1.a": 2, "blocks.1": 20, "blocks.1.b": 200})
unlabelled = 223 + 446 + 1000
expect("after remove()", rows("after.pb.gz", "category"), {**before, "-": unlabelled})

# Two models at once, with names, one of them in another thread.
hbmprof.save("base.pb.gz")
first, second = Layer(7), Layer(70)
with hbmprof.torch.watch(first, name="draft"), hbmprof.torch.watch(second):
    first(torch.tensor(1.0))
    thread = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), second(torch.tensor(1.0)), allocate(3)))
    thread.start()
    thread.join()
found = rows("models.pb.gz", "module")
expect("models", (found["draft"], found["Layer"], found["-"]), (7, 70, 50 + 1000 + unlabelled + 3))


def unlabelled_after(label):
    """Allocates 5 bytes, and checks that they have no label of watch()."""
    before = rows("count.pb.gz", "phase").get("-", 0)
    allocate(5)
    after = rows("count.pb.gz", "phase").get("-", 0)
    expect(label, after - before, 5)


# Exceptions.
watch = hbmprof.torch.watch(model, optimizer)
inner = list(model.blocks)[1].a
inner.fails = True
try:
    model(torch.tensor(1.0))
except RuntimeError as error:
    assert str(error) == "in forward"
else:
    raise SystemExit("no exception")
unlabelled_after("after an exception in forward")
inner.fails = False


def raises(_):
    raise RuntimeError("in backward")


output = model(torch.tensor(1.0))
hook = inner.w.register_hook(raises)
try:
    output.backward()
except RuntimeError as error:
    assert str(error) == "in backward"
else:
    raise SystemExit("no exception")
hook.remove()
model(torch.tensor(1.0))
unlabelled_after("after an exception in backward, and a forward pass")
optimizer.fails = True
try:
    optimizer.step()
except RuntimeError as error:
    assert str(error) == "in step"
optimizer.fails = False
optimizer.step()
unlabelled_after("after an exception in step, and a step")

# What is still in the graph after remove() does nothing.
output = model(torch.tensor(1.0))
watch.remove()
watch.remove()
gradients = rows("removed.pb.gz", "category")["gradients and workspaces"]
output.backward()
expect("after remove()", rows("removed.pb.gz", "category")["gradients and workspaces"], gradients)
unlabelled_after("after remove()")


def line_of(module):
    """The label `forward` of the only line of a module's forward()."""
    return f"{'/'.join(pathlib.Path(__file__).parts[-2:])}:{type(module).forward.__code__.co_firstlineno + 1}"


# A backward pass inside a backward pass; the first time, an exception ends both.
torch.autograd.set_detect_anomaly(True)
x = torch.tensor(1.0).requires_grad_()
checkpointed = Checkpointed(Layer(13), 29)
with hbmprof.torch.watch(checkpointed, name="rerun"):
    output = checkpointed(x)
    checkpointed.module.fails = True
    try:
        output.backward(retain_graph=True)
    except RuntimeError as error:
        assert "in forward" in str(error), error
    else:
        raise SystemExit("no exception")
    checkpointed.module.fails = False
    output.backward()
    unlabelled_after("after a backward pass inside a backward pass")
found = rows("rerun.pb.gz", "module", "-w", "phase=backward")
expect("a backward pass inside a backward pass", (found["rerun.module"], found.get("rerun")), (26, 29))
expect("its lines", rows("rerun.pb.gz", "forward", "-w", "phase=backward").get(line_of(checkpointed)), 26 + 29)

# The lines of a graph that a Watch which is removed has marked.
first, second = Passed(31), Passed(37)
with hbmprof.torch.watch(first):
    output = first(x)
with hbmprof.torch.watch(second):
    second(output).backward()
expect("lines of a removed Watch", rows("lines.pb.gz", "forward", "-w", "phase=backward").get(line_of(first)), 62 + 74)
torch.autograd.set_detect_anomaly(False)

try:
    hbmprof.torch.watch(torch.jit.ScriptModule())
except hbmprof.Error as error:
    assert "TorchScript" in str(error), error
else:
    raise SystemExit("a module of TorchScript was watched")

if IS_REAL:
    scripted = torch.jit.script(torch.nn.Linear(1, 1))
    outer = torch.nn.Sequential(scripted, torch.nn.Linear(1, 1))
    with hbmprof.torch.watch(outer):
        outer(torch.ones(1, 1)).backward()
    unlabelled_after("a module of TorchScript in another module")
    compiled = torch.compile(Layer(11), backend="eager")
    with hbmprof.torch.watch(compiled):
        expect("compiled", compiled(torch.tensor(2.0)).item(), 3.0)
    found = rows("compiled.pb.gz", "module")
    expect("module of a compiled module", found.get("OptimizedModule"), 11)
print("watch_test: passed")
