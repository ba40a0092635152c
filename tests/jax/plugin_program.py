"""Allocates on a PJRT plugin from nested Python functions: buffers from host memory, and outputs of executions.

usage: plugin_program.py PLUGIN EXPECTED

Each call site requests a different size. Writes Python's own stack of each size to EXPECTED, in the format of
tests/python/frames_program.py. Executions pass their call location to the plugin as JAX does with
JAX_SEND_TRACEBACK_TO_RUNTIME=ON.
"""
import ctypes
import sys

F32 = 11
IMMUTABLE_UNTIL_TRANSFER_COMPLETES = 1
# CompileOptionsProto: one replica, one partition.
ONE_DEVICE = b"\x1a\x04\x20\x01\x28\x01"

expected = {}
kept = []  # objects that the plugin may still read


def name_of(code):
    return code.co_qualname if hasattr(code, "co_qualname") else code.co_name


def expect(size, options=None):
    """Stores the caller's stack for `size`, and puts it into the PJRT_ExecuteOptions. Returns True."""
    stack = []
    frame = sys._getframe(1)
    while frame is not None:
        stack.append((name_of(frame.f_code), frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    if size is not None:
        expected[size] = stack
    if options is not None:
        kept.append(ctypes.create_string_buffer(("%s:%d" % stack[0][1:]).encode()))
        options[10] = ctypes.addressof(kept[-1])
    return True


def words(*fields):
    """A struct of the PJRT C API: its size, no extension, and these fields of 8 bytes."""
    return (ctypes.c_uint64 * (2 + len(fields)))(16 + 8 * len(fields), 0, *fields)


def address_of(array):
    kept.append(array)
    return ctypes.addressof(array)


def text(data):
    return address_of(ctypes.create_string_buffer(data))


class Plugin:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        library.GetPjrtApi.restype = ctypes.c_void_p
        self.table = library.GetPjrtApi()
        self.call(3, words())  # PJRT_Plugin_Initialize
        self.client = self.call(10, words(*[0] * 9))[8]
        devices = self.call(16, words(self.client, 0, 0))[3]
        self.device = ctypes.c_uint64.from_address(devices).value

    def function(self, slot):
        address = ctypes.c_uint64.from_address(self.table + 40 + 8 * slot).value
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)

    def call(self, slot, args, size=None, options=None):
        function = self.function(slot)
        error = expect(size, options) and function(args)
        if error:
            message = words(error, 0, 0)
            self.function(1)(message)
            sys.exit("slot %d: %s" % (slot, ctypes.string_at(message[3], message[4]).decode()))
        return args

    def wait(self, event):
        self.call(8, words(event))
        self.call(5, words(event))

    def upload(self, count):
        data = address_of((ctypes.c_float * count)())
        dims = address_of((ctypes.c_int64 * 1)(count))
        args = words(self.client, data, F32, dims, 1, 0, 0, IMMUTABLE_UNTIL_TRANSFER_COMPLETES, self.device, 0, 0, 0, 0)
        self.call(22, args, 4 * count)
        self.wait(args[13])
        return args[14]

    def compile(self, count):
        """A program that fills an array with ones."""
        code = ("module @ones { func.func public @main() -> tensor<%dxf32> { "
                "%%one = stablehlo.constant dense<1.0> : tensor<%dxf32> "
                "return %%one : tensor<%dxf32> } }" % (count, count, count)).encode()
        program = words(text(code), len(code), text(b"mlir"), 4)
        return self.call(20, words(self.client, address_of(program), text(ONE_DEVICE), len(ONE_DEVICE), 0))[6]

    def execute(self, executable, size):
        options = words(*[0] * 16)
        outputs = (ctypes.c_uint64 * 1)()
        output_lists = (ctypes.c_uint64 * 1)(address_of(outputs))
        argument_lists = (ctypes.c_uint64 * 1)(address_of((ctypes.c_uint64 * 1)()))
        events = (ctypes.c_uint64 * 1)()
        args = words(executable, address_of(options), address_of(argument_lists), 1, 0, address_of(output_lists),
                     address_of(events), 0)
        self.call(55, args, size, options)
        self.wait(events[0])
        return outputs[0]


class Model:
    def __init__(self, plugin):
        self.plugin = plugin
        self.weights = plugin.upload(1000)
        self.steps = {count: plugin.compile(count) for count in (3000, 4000)}

    def answer(self, count):
        return self.plugin.execute(self.steps[count], 4 * count)


def requests(model):
    for count in (3000, 4000):
        yield model.answer(count)


def serve(plugin):
    model = Model(plugin)
    buffers = [plugin.upload(2000)]
    buffers.extend(requests(model))
    return model, buffers


live = serve(Plugin(sys.argv[1]))
with open(sys.argv[2], "w") as file:
    for size, stack in expected.items():
        file.write("%d 1\n" % size)
        for frame in stack:
            file.write("%s\t%s\t%d\n" % frame)
print("done")
