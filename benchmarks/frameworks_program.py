"""Work of a framework's that allocates device memory. Prints the fastest and the median processor time of each kind, in
microseconds. Run by frameworks.sh.

usage: frameworks_program.py torch|jax|tensorflow|onnxruntime|import [HISTORY]
"import" only imports torch. HISTORY: the stacks of PyTorch's own history: "python" or "all"
"""
import statistics
import sys
import threading
import time


def measure(name, call, count):
    times = []
    for _ in range(31):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append((time.process_time() - start) / count * 1e6)
    print(f"{name}\t{min(times)}\t{statistics.median(times)}", flush=True)


def under(depth, call):
    return under(depth - 1, call) if depth > 1 else call()


def torch_work():
    import torch

    if len(sys.argv) > 2:
        torch.cuda.memory._record_memory_history(stacks=sys.argv[2])
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    modules = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(16)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, 16, 64, device="cuda")
    row = torch.randn(4, 16, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    def empty():
        torch.empty(256, device="cuda")

    def forward():
        with torch.no_grad():
            modules(row)

    def two_threads():
        threads = [threading.Thread(target=lambda: [empty() for _ in range(1000)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def allocations_of(call):
        allocated = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
        call()
        before = allocated()
        call()
        return allocated() - before

    measure(f"a training step, {allocations_of(step)} allocations", step, 5)
    measure(f"forward of 16 modules, {allocations_of(forward)} allocations", forward, 50)
    for depth in (0, 20, 60):
        under(depth, lambda: measure(f"torch.empty and its free, under {depth} Python functions", empty, 1000))
    measure("two threads, 1,000 times torch.empty each", two_threads, 1)


def jax_work():
    import jax
    import numpy
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # the substitute has no /dev/nvidia0
    add = jax.jit(lambda x: x + 1)
    data = numpy.zeros(256, numpy.float32)
    value = jax.device_put(data)
    measure("JAX: a jitted function", lambda: add(value), 200)
    measure("JAX: device_put", lambda: jax.device_put(data), 200)


def tensorflow_work():
    import tensorflow

    for device in tensorflow.config.list_physical_devices("GPU"):
        tensorflow.config.experimental.set_memory_growth(device, True)
    weights = tensorflow.Variable(tensorflow.zeros((64, 64)))
    data = tensorflow.zeros((16, 64))

    def step():
        with tensorflow.GradientTape() as tape:
            loss = tensorflow.reduce_sum(tensorflow.matmul(data, weights))
        weights.assign_sub(tape.gradient(loss, weights))

    measure("TensorFlow: an eager step", step, 20)


def onnxruntime_work():
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(4 * 64 * 64), raw=True)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "model", [tensor("x")], [tensor("y")], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"])
    data = {"x": numpy.zeros((16, 64), numpy.float32)}
    measure("ONNX Runtime: run", lambda: session.run(None, data), 100)


def import_only():
    import torch  # noqa: F401

    elapsed = time.process_time() * 1e6
    print(f"start-up, import torch\t{elapsed}\t{elapsed}", flush=True)


WORK = {"torch": torch_work, "jax": jax_work, "tensorflow": tensorflow_work, "onnxruntime": onnxruntime_work,
        "import": import_only}
WORK[sys.argv[1]]()
