"""Labels what the modules and the optimizer of a PyTorch program allocate: see watch().

`import hbmprof` does not import PyTorch, and neither does this module: PyTorch is imported by watch().
"""

import atexit
import re
import sys
import threading
import time
import weakref

import hbmprof

__all__ = ["Watch", "watch"]

_FORWARD, _BACKWARD, _LINE, _STEP = range(4)
# The keys under which a node of the autograd graph has the Watch that labels its module, and its line.
_METADATA = "hbmprof"
_LINES = "hbmprof line"
_MOST_DEPTH = 32
_MOST_TENSORS = 1000  # of an output or of the inputs; the others are not looked at
_EXIT_WAIT_S = 5

# What this module has given to the autograd engine's queue_callback() and the engine still has. A thread of the engine
# destroys it after backward() may have returned, and takes the interpreter's lock for that. After the interpreter's end
# that ends the process with SIGABRT ("terminate called without an active exception").
_queued = weakref.WeakSet()


@atexit.register
def _wait_for_queued():
    """Waits until the engine has destroyed what this module gave it, for at most _EXIT_WAIT_S."""
    deadline = time.monotonic() + _EXIT_WAIT_S
    while _queued and time.monotonic() < deadline:
        time.sleep(0.001)


class _Scopes(threading.local):
    """The scopes of a thread that are open, innermost last: (kind, what has begun it, number of tags, what else is known).

    The last is the module's path; of _BACKWARD and _LINE, which the number of their backward pass has begun, the id of
    the frame that runs this pass, 0 in a thread of PyTorch's own.
    """

    def __init__(self):
        self.open = []


def _tensors(value, found, tensor_type, depth=0):
    """Adds the tensors in `value` to the list `found`: of nested tuples, lists and dicts, up to _MOST_DEPTH levels."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, tensor_type):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            if len(found) >= _MOST_TENSORS:
                return
            _tensors(one, found, tensor_type, depth + 1)
    elif isinstance(value, dict):
        _tensors(tuple(value.values()), found, tensor_type, depth + 1)


def _caller():
    """Returns the innermost Python frame outside of this file; None if PyTorch's own thread has called it."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame


def _line_of(node, folder):
    """Returns the innermost line outside of `folder` of a node's traceback, as "models/gpt.py:26"; None without one."""
    for entry in reversed(node.metadata.get("traceback_") or ()):
        match = re.search(r'File "(.*)", line (\d+)', entry)
        if match and not match[1].startswith(folder + "/"):
            return f"{'/'.join(match[1].split('/')[-2:])}:{match[2]}".encode()
    return None


class Watch:
    """What watch() returns. remove() ends the labels; as a context manager, the end of the `with` block does."""

    def __init__(self):
        self._handles = []
        self._is_removed = False
        self._close_scopes = None  # ends the scopes of the calling thread

    def remove(self):
        """Removes all hooks. What was allocated before keeps its labels. A second call does nothing.

        Other threads must not run the model meanwhile.
        """
        self._is_removed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._close_scopes()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
        return False


def watch(model, optimizer=None, *, name=""):
    """Labels what is allocated while `model` and `optimizer` run, and returns a Watch, whose remove() ends that.

    `model` is a torch.nn.Module. `optimizer` is a torch.optim.Optimizer or a list of them. The labels are:

    module    the path of the innermost module that runs, such as "layers.0.attention", also in the backward pass. That of
              `model` itself is `name`, or the name of its class; `name` also comes before all other paths. Parameters and
              the optimizer's state have no module: no module runs when they are allocated.
    phase     "forward", "backward" or "step"
    category  "activations and workspaces" in the forward pass, "gradients and workspaces" in the backward pass, "optimizer
              state" in step(). A workspace is memory that a library such as cuBLAS takes for its own use
    forward   in the backward pass, the line of the forward pass that made the operator, if PyTorch detects anomalies

    The results of the model do not change. Parameters that exist already keep their labels: create them inside
    `with hbmprof.tag("category", "parameters"):`. Raises hbmprof.Error if PyTorch is older than 2.1, or if `model` is a
    module of TorchScript, which has no hooks.
    """
    import torch

    if not hasattr(torch._C, "_current_graph_task_id"):
        raise hbmprof.Error(f"hbmprof.torch.watch: PyTorch {torch.__version__} is too old; it needs 2.1 or later")
    if isinstance(model, torch.jit.ScriptModule):
        raise hbmprof.Error("hbmprof.torch.watch: a module of TorchScript has no hooks; watch a module that calls it")
    library = hbmprof._load()
    push, pop = library.hbmprof_tag_push, library.hbmprof_tag_pop
    graph_task = torch._C._current_graph_task_id
    # torch.compile traces the hooks. They do nothing there.
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)
    scopes = _Scopes()
    result = Watch()

    def close_until(count):
        """Ends the innermost scopes of the thread, until `count` are open."""
        while len(scopes.open) > count:
            for _ in range(scopes.open.pop()[2]):
                pop()

    def close(kind, owner):
        """Ends a scope, and those inside it that an exception has left open. Does nothing if it is not open."""
        for index in range(len(scopes.open) - 1, -1, -1):
            if scopes.open[index][:2] == (kind, owner):
                close_until(index)
                return

    def waits(frame_id):
        """Returns whether a backward pass that this frame runs waits for the one that runs now, which one of its nodes has
        begun (reentrant checkpointing does that)."""
        frame = _caller()
        if graph_task() == -1 or frame is None:
            return False
        if frame_id == 0:
            return True
        while (frame := frame.f_back) is not None:
            if id(frame) == frame_id:
                return True
        return False

    def close_ended_backward():
        """Ends the scopes of a backward pass that an exception has ended."""
        while scopes.open and scopes.open[-1][0] in (_BACKWARD, _LINE):
            _, task, _, frame_id = scopes.open[-1]
            if task == graph_task() or waits(frame_id):
                return
            close_until(len(scopes.open) - 1)

    def open_backward(kind, count):
        """Opens a scope of the backward pass that runs, with the `count` tags that were just pushed."""
        frame = _caller()
        scopes.open.append((kind, graph_task(), count, 0 if frame is None else id(frame)))

    def begin_backward(path):
        """From now on, what the thread allocates in this backward pass belongs to the module `path`."""
        close_ended_backward()
        task = graph_task()
        if scopes.open and scopes.open[-1][:2] == (_BACKWARD, task):
            pop()
            push(b"module", path)
            return
        if any(scope[:2] == (_BACKWARD, task) for scope in scopes.open):
            return  # a module runs again inside the backward pass, as with checkpointing
        push(b"phase", b"backward")
        push(b"category", b"gradients and workspaces")
        push(b"module", path)
        open_backward(_BACKWARD, 3)

        def ends():
            close(_BACKWARD, task)

        _queued.add(ends)
        torch.autograd.Variable._execution_engine.queue_callback(ends)

    def is_marked(node, key):
        """Returns whether a Watch that is not removed has marked the node. If not, this one marks it."""
        watch = node.metadata.get(key)
        if watch is not None and not watch._is_removed:
            return True
        node.metadata[key] = result
        return False

    def mark(value, path):
        """Makes the backward pass begin the module `path` when it reaches the tensors of `value`."""
        tensors = []
        _tensors(value, tensors, torch.Tensor)
        for tensor in tensors:
            node = tensor.grad_fn
            if node is None or is_marked(node, _METADATA):
                continue

            def begins(_):
                if not result._is_removed:
                    begin_backward(path)

            node.register_prehook(begins)

    def mark_lines(value):
        """Makes each node of the graph of `value` that has a traceback begin its line when it runs, and end it."""
        tensors = []
        _tensors(value, tensors, torch.Tensor)
        nodes = [tensor.grad_fn for tensor in tensors]
        while nodes:
            node = nodes.pop()
            if node is None or is_marked(node, _LINES):
                continue
            nodes += [following for following, _ in node.next_functions]
            line = _line_of(node, torch.__path__[0])
            if line is None:
                continue

            def begins(_, line=line):
                close_ended_backward()
                if not result._is_removed:
                    push(b"forward", line)
                    open_backward(_LINE, 1)

            node.register_prehook(begins)
            node.register_hook(lambda *_: close(_LINE, graph_task()))

    def watch_module(module, path):
        owner = id(module)

        # These are no methods: copy.deepcopy(model) would copy their object.
        def before(_, inputs):
            if is_compiling():
                return
            close_ended_backward()
            if scopes.open and scopes.open[-1][0] == _FORWARD:
                mark(inputs, scopes.open[-1][3])
                push(b"module", path)
                scopes.open.append((_FORWARD, owner, 1, path))
                return
            push(b"phase", b"forward")
            push(b"category", b"activations and workspaces")
            push(b"module", path)
            scopes.open.append((_FORWARD, owner, 3, path))

        def after(_, inputs, output):
            if is_compiling():
                return
            close(_FORWARD, owner)
            mark(output, path)
            if not scopes.open and torch.is_anomaly_enabled():
                mark_lines(output)

        result._handles.append(module.register_forward_pre_hook(before))
        result._handles.append(module.register_forward_hook(after, always_call=True))

    def watch_optimizer(one):
        owner = id(one)

        def before(*_):
            close(_STEP, owner)  # a step that an exception has ended
            close_ended_backward()
            push(b"phase", b"step")
            push(b"category", b"optimizer state")
            scopes.open.append((_STEP, owner, 2, None))

        def after(*_):
            close(_STEP, owner)

        result._handles.append(one.register_step_pre_hook(before))
        result._handles.append(one.register_step_post_hook(after))

    result._close_scopes = lambda: close_until(0)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        full = f"{name}.{path}" if name and path else path or name or type(model).__name__
        watch_module(module, full.encode())
    for one in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        if one is not None:
            watch_optimizer(one)
    return result
