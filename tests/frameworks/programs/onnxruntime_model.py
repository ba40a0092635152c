"""ONNX Runtime's CUDA provider: a model with weights of 4 MiB, batches for which its arena grows, and the end of what is
free in the arena. Its log has each change of the arena."""
import os
import re

import numpy
import onnx
import onnxruntime
from comparison import of_hbmprof, write
from onnx import TensorProto, helper

LOG = os.environ["FRAMEWORKS_RESULTS"] + ".log"
EXTENDED = r"Extending BFCArena for Cuda\..*\n.*Extended allocation by (\d+) bytes"
SHRUNK = r"Cuda BFC Arena shrunk by (\d+) bytes"


def of_onnxruntime():
    with open(LOG) as file:
        changes = [int(grown or -int(shrunk)) for grown, shrunk in re.findall(f"{EXTENDED}|{SHRUNK}", file.read())]
    sums = [sum(changes[:number + 1]) for number in range(len(changes))]
    return {"bytes": sums[-1], "blocks": sum(1 if change > 0 else -1 for change in changes), "reserved": sums[-1],
            "allocated": sum(change for change in changes if change > 0), "peak": max(sums)}


def moment(name):
    write(name, of_onnxruntime(), of_hbmprof(None))


def make_model():
    def tensor(name, rows):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 1024])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1024, 1024], bytes(4 << 20), raw=True)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "model", [tensor("x", "n")], [tensor("y", "n")], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def load(model):
    return onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"])


def answer(session, batch, shrinks=False):
    options = onnxruntime.RunOptions()
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
    session.run(None, {"x": numpy.zeros((batch, 1024), numpy.float32)}, options)


onnxruntime.set_default_logger_severity(0)
with open(LOG, "w") as file:
    os.dup2(file.fileno(), 2)
session = load(make_model())
moment("the weights")
answer(session, 1)
answer(session, 4096)
moment("two batches")
answer(session, 16, shrinks=True)
moment("after it has shrunk")
