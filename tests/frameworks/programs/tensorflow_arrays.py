"""TensorFlow: a variable, a list that grows, a product. TensorFlow counts bytes and their peak."""
import tensorflow
from comparison import of_hbmprof, write

for device in tensorflow.config.list_physical_devices("GPU"):
    tensorflow.config.experimental.set_memory_growth(device, True)


def moment(name):
    tensorflow.test.experimental.sync_devices()
    theirs = tensorflow.config.experimental.get_memory_info("GPU:0")
    write(name, {"bytes": theirs["current"], "peak": theirs["peak"]}, of_hbmprof("tensorflow"))


def load():
    return tensorflow.Variable(tensorflow.zeros((1024, 1024)))


def grow(kept):
    for _ in range(10):
        kept.append(tensorflow.identity(tensorflow.zeros((100, 1000))))


weights, kept = load(), []
moment("a variable")
grow(kept)
moment("a list")
product = tensorflow.matmul(weights, weights)
del kept[1::2]
moment("a product, half of the list")
