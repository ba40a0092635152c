#!/usr/bin/env python3
"""Runs an unmodified JAX program on a wrapped PJRT plugin and compares, at one moment, hbmprof's profile with
jax.profiler.device_memory_profile(), device by device and buffer by buffer.

usage: compare.py SHIM PLUGIN PYPI PROTO
  SHIM    libhbmprof_pjrt.so
  PLUGIN  the plugin it wraps
  PYPI    a folder with jax and protobuf (pip install --target)
  PROTO   the folder of profile.proto

Prints both as a table. Exits 0 if every buffer of every device is in both with the same size, 1 with a line for each
buffer that is not, 77 if a needed package is missing.
"""

import collections
import ctypes
import gzip
import os
import subprocess
import sys
import tempfile

SKIPPED = 77


def read_profile(message, data):
  """Returns [(labels, count, bytes)] of a gzip-compressed profile, from its in-use values."""
  profile = message.FromString(gzip.decompress(data))
  text = [entry.decode("utf-8", "replace") for entry in profile.string_table]
  types = [text[t.type] for t in profile.sample_type]
  count_index = types.index("inuse_objects") if "inuse_objects" in types else types.index("allocations")
  bytes_index = types.index("inuse_space") if "inuse_space" in types else types.index("space")
  rows = []
  for sample in profile.sample:
    labels = {text[label.key]: text[label.str] if label.str else label.num for label in sample.label}
    if sample.value[count_index]:
      rows.append((labels, sample.value[count_index], sample.value[bytes_index]))
  return rows


def profile_message(proto):
  """The class of pprof's Profile, made from the .proto file."""
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
  with tempfile.NamedTemporaryFile() as file:
    subprocess.run(["protoc", "-I", proto, "--descriptor_set_out", file.name, "profile.proto"], check=True)
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(file.read())
  pool = descriptor_pool.DescriptorPool()
  for descriptor in descriptors.file:
    pool.Add(descriptor)
  name = descriptors.file[0].package + ".Profile"
  return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class Model:
  """A small training loop: parameters on every device, donated state, sharded activations, arrays kept and dropped."""

  def __init__(self, jax):
    jnp = jax.numpy
    self.devices = jax.local_devices()
    key = jax.random.PRNGKey(0)
    self.weights = [jax.device_put(jax.random.normal(key, (64 + 16 * i, 32)), device)
                    for i, device in enumerate(self.devices)]
    self.step = jax.jit(lambda state, x: (state + x, (state * x).sum(axis=0)), donate_argnums=0)
    self.state = jnp.zeros((128, 32), jnp.float32)
    mesh = jax.sharding.Mesh(self.devices, ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    self.sharded = jax.device_put(jnp.ones((8 * len(self.devices), 100), jnp.float32), sharding)
    self.forward = jax.jit(lambda x: jnp.tanh(x) @ x.T, in_shardings=sharding)
    self.kept = []

  def run(self, jax):
    jnp = jax.numpy
    for i in range(20):
      self.state, summary = self.step(self.state, jnp.full((128, 32), float(i)))
      if i % 5 == 0:
        self.kept.append(summary)  # the others are dropped
    self.kept.append(self.forward(self.sharded))
    self.kept.append(jax.device_put(self.kept[0], self.devices[-1]))  # a copy to another device
    gone = jnp.ones((500, 500))
    gone.delete()
    self.kept.append(jnp.zeros((0, 7)))  # no bytes
    jax.block_until_ready([self.state, self.weights, self.sharded] + self.kept)
    return gone


def main(arguments):
  if len(arguments) != 5:
    print(__doc__)
    return 2
  shim, plugin, pypi, proto = arguments[1:]
  for needed in (shim, plugin, os.path.join(pypi, "jax")):
    if not os.path.exists(needed):
      print(f"not here: {needed} (scripts/pjrt_test.sh installs JAX and a plugin)")
      return SKIPPED
  sys.path.insert(0, pypi)
  os.environ["HBMPROF_PJRT_PLUGIN"] = plugin
  os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"wrapped:{shim}"
  os.environ["JAX_PLATFORMS"] = "wrapped"
  try:
    import jax
    message = profile_message(proto)
  except (ImportError, OSError) as problem:
    print(f"JAX or protobuf cannot be used here: {problem}")
    return SKIPPED

  model = Model(jax)
  gone = model.run(jax)

  # At the same moment: nothing runs in between.
  theirs = read_profile(message, jax.profiler.device_memory_profile())
  library = ctypes.CDLL(shim)
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "hbmprof.pb.gz")
    status = library.hbmprof_save_device_memory_profile(path.encode())
    if status != 0:
      library.hbmprof_last_error.restype = ctypes.c_char_p
      print(f"hbmprof saved nothing: {library.hbmprof_last_error().decode()}")
      return 1
    with open(path, "rb") as file:
      ours = read_profile(message, file.read())
  del gone

  # How many buffers of each size each device has.
  jax_buffers = collections.Counter()
  jax_code = [0, 0]
  for labels, count, size in theirs:
    if labels["kind"] == "executable":
      jax_code[0] += count
      jax_code[1] += size
    else:
      jax_buffers[labels["device"], size // count] += count
  our_buffers = collections.Counter()
  our_code = collections.Counter()
  shapes = collections.defaultdict(set)
  for labels, count, size in ours:
    if labels["kind"] == "executable":
      our_code[labels["executable"]] += count
      our_code["bytes"] += size
    elif labels["kind"] != "alias":
      our_buffers[labels["device"], size // count] += count
      shapes[labels["device"], size // count].add(labels["shape"])

  print(f"JAX {jax.__version__}, {jax.local_devices()[0].client.platform_version}")
  print(f"{'device':<12} {'bytes each':>10} {'JAX':>5} {'hbmprof':>8}  shape")
  different = 0
  for key in sorted(set(jax_buffers) | set(our_buffers)):
    same = jax_buffers[key] == our_buffers[key]
    different += not same
    print(f"{key[0]:<12} {key[1]:>10} {jax_buffers[key]:>5} {our_buffers[key]:>8}  {' '.join(sorted(shapes[key]))}"
          f"{'' if same else '   DIFFERENT'}")
  for device in sorted({key[0] for key in set(jax_buffers) | set(our_buffers)}):
    totals = [sum(size * count for (where, size), count in counts.items() if where == device)
              for counts in (jax_buffers, our_buffers)]
    print(f"{device:<12} {'in all':>10} {totals[0]:>5} {totals[1]:>8}  bytes")
  code_bytes = our_code.pop("bytes", 0)
  print(f"executables: JAX {jax_code[0]} of {jax_code[1]} B (each once), hbmprof {sum(our_code.values())} of {code_bytes} B "
        "(each once for every device it is loaded on)")
  print("the same buffers in both" if different == 0 else f"{different} sizes differ")
  return 0 if different == 0 else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv))
