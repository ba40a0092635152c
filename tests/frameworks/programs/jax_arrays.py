"""JAX as installed, on its CUDA plugin, with an array of 40 MB. With "use": through hbmprof.use_with_jax."""
import sys

if "use" in sys.argv:
    import hbmprof
    hbmprof.use_with_jax("cuda")
    hbmprof.counter("step", 1)  # also before jax is imported, this goes to the plugin
import jax
import jax.numpy as jnp
from jax._src import hardware_utils

# JAX tries CUDA only where it finds /dev/nvidia0, which the substitute has not.
hardware_utils.has_visible_nvidia_gpu = lambda: True


def load():
    return jnp.ones((1000, 10000), jnp.float32) * 2


weights = load()
weights.block_until_ready()
print(jax.devices())
if "use" in sys.argv:
    hbmprof.save("arrays.pb.gz")
