"""A stand-in for PyTorch: the hooks of modules, of the autograd graph and of optimizers that hbmprof.torch uses.

watch_test.py uses it if PyTorch is not installed. Tensors are numbers. The order in which hooks are called, and the
thread, are those of PyTorch 2.6 on a CPU: the test has run with both.
"""

import contextlib
import itertools
import traceback
import types

__version__ = "2.1 (stand-in)"

_task = [-1]  # the number of the backward pass that runs
_tasks = itertools.count()
_callbacks = []
_C = types.SimpleNamespace(_current_graph_task_id=lambda: _task[0])
_is_anomaly_enabled = [False]
is_anomaly_enabled = lambda: _is_anomaly_enabled[0]
enable_grad = contextlib.nullcontext
compiler = types.SimpleNamespace(is_compiling=lambda: False)


class _Handle:
    _numbers = itertools.count()

    def __init__(self, hooks, hook):
        self.hooks, self.number = hooks, next(self._numbers)
        hooks[self.number] = hook

    def remove(self):
        self.hooks.pop(self.number, None)


class Tensor:
    def __init__(self, value, requires_grad=False):
        self.value, self.requires_grad, self.grad_fn, self.grad = value, requires_grad, None, None
        self._hooks = {}

    def __mul__(self, other):
        return Tensor(self.value * other.value)

    def item(self):
        return self.value

    def detach(self):
        return Tensor(self.value)

    def requires_grad_(self):
        self.requires_grad = True
        return self

    def register_hook(self, hook):
        return _Handle(self._hooks, hook)

    def backward(self, retain_graph=False):
        outer, _task[0] = _task[0], next(_tasks)
        waiting = _callbacks[:]
        _callbacks.clear()
        ready = [(self.grad_fn, Tensor(1.0))]  # the graphs of the test are chains
        try:
            while ready:
                node, gradient = ready.pop()
                for hook in list(node.prehooks.values()):
                    hook((gradient,))
                gradients = node.function.backward(node.context, gradient)
                for hook in list(node.posthooks.values()):
                    hook(gradients, (gradient,))
                for tensor, one in zip(node.inputs, gradients):
                    if not isinstance(tensor, Tensor) or one is None:
                        continue
                    for hook in list(tensor._hooks.values()):
                        hook(one)
                    if tensor.grad_fn is not None:
                        ready.append((tensor.grad_fn, one))
                    elif tensor.requires_grad:
                        tensor.grad = Tensor((tensor.grad.value if tensor.grad else 0.0) + one.value)
            while _callbacks:
                _callbacks.pop(0)()
        finally:
            _callbacks[:] = waiting
            _task[0] = outer


def tensor(value, requires_grad=False):
    return Tensor(value, requires_grad)


class _Node:
    def __init__(self, function, context, inputs):
        self.function, self.context, self.inputs = function, context, inputs
        self.prehooks, self.posthooks = {}, {}
        self.metadata = {"traceback_": traceback.format_stack()} if is_anomaly_enabled() else {}
        self.next_functions = [(one.grad_fn, 0) for one in inputs if isinstance(one, Tensor)]

    def register_prehook(self, hook):
        return _Handle(self.prehooks, hook)

    def register_hook(self, hook):
        return _Handle(self.posthooks, hook)


class _Function:
    @classmethod
    def apply(cls, *inputs):
        context = types.SimpleNamespace()
        context.save_for_backward = lambda *saved: setattr(context, "saved_tensors", saved)
        output = cls.forward(context, *inputs)
        output.grad_fn = _Node(cls, context, inputs)
        return output


autograd = types.SimpleNamespace(
    Function=_Function, set_detect_anomaly=lambda mode: _is_anomaly_enabled.__setitem__(0, mode), Variable=types.SimpleNamespace(_execution_engine=types.SimpleNamespace(queue_callback=_callbacks.append)))


class _Module:
    def __init__(self):
        self._modules, self._parameters, self._before, self._after, self._always = {}, {}, {}, {}, set()

    def __setattr__(self, name, value):
        if isinstance(value, _Module):
            self._modules[name] = value
        elif isinstance(value, Tensor):
            self._parameters[name] = value
        super().__setattr__(name, value)

    def named_modules(self, known=None, path=""):
        known = set() if known is None else known
        if id(self) in known:
            return
        known.add(id(self))
        yield path, self
        for name, module in self._modules.items():
            yield from module.named_modules(known, f"{path}.{name}" if path else name)

    def parameters(self):
        return [parameter for _, module in self.named_modules() for parameter in module._parameters.values()]

    def register_forward_pre_hook(self, hook):
        return _Handle(self._before, hook)

    def register_forward_hook(self, hook, always_call=False):
        handle = _Handle(self._after, hook)
        if always_call:
            self._always.add(handle.number)
        return handle

    def __call__(self, *inputs):
        called = set()
        try:
            for hook in list(self._before.values()):
                hook(self, inputs)
            output = self.forward(*inputs)
            for number, hook in list(self._after.items()):
                called.add(number)
                hook(self, inputs, output)
            return output
        except Exception:
            for number, hook in list(self._after.items()):
                if number in self._always and number not in called:
                    hook(self, inputs, None)
            raise


class _ModuleList(_Module):
    def __init__(self, modules):
        super().__init__()
        self._modules = {str(number): module for number, module in enumerate(modules)}

    def __iter__(self):
        return iter(self._modules.values())


nn = types.SimpleNamespace(Module=_Module, ModuleList=_ModuleList, Parameter=lambda value: Tensor(value.value, True))
jit = types.SimpleNamespace(ScriptModule=type("ScriptModule", (_Module,), {}))


class _Optimizer:
    def __init__(self, parameters, _defaults):
        self.parameters, self._before, self._after = list(parameters), {}, {}

    def __init_subclass__(cls):
        step = cls.step

        def hooked(self):
            for hook in list(self._before.values()):
                hook(self, (), {})
            step(self)
            for hook in list(self._after.values()):
                hook(self, (), {})

        cls.step = hooked

    def register_step_pre_hook(self, hook):
        return _Handle(self._before, hook)

    def register_step_post_hook(self, hook):
        return _Handle(self._after, hook)


optim = types.SimpleNamespace(Optimizer=_Optimizer)
