#!/usr/bin/env bash
# Runs the tests that need a GPU, on a machine that has only a GPU: no checkout, no network, no packages.
#
# usage: scripts/gpu_test.sh pack [--libraries] [--to FOLDER] [BUILD_DIR]
#            On the machine of the build: copies the tests, this script and the libraries that they need to FOLDER
#            (default BUILD_DIR/gpu). With --libraries also cuBLAS and NCCL, which are large. Without it, the tests use
#            those of the other machine, from its toolkit or its Python packages.
#        .../gpu/gpu_test.sh
#            On the machine with the GPU, from that folder: prints a table of what is recorded and what is expected
#            (tests/gpu/gpu_table.cc), and runs the tests.
#        scripts/gpu_test.sh [BUILD_DIR]
#            Runs the tests in BUILD_DIR/gpu of this checkout.
#
# BUILD_DIR is build/dev if it is not given. Exits with 1 if a test or a line of the table failed; what cannot run is
# skipped and says why. A test runs this script on the substitute driver (tests/gpu/rehearsal_test.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

pack() {
  local file vendors='|libcublas[^/]*|libnccl' packed=
  while [[ ${1:-} == --* ]]; do
    case $1 in
      --libraries) vendors= ;;
      --to) packed=$2; shift ;;
      *) echo "gpu_test: no option $1" >&2; exit 2 ;;
    esac
    shift
  done
  cd "$here/.."
  local build=${1:-build/dev}
  packed=${packed:-$build/gpu}
  local -a programs=("$build"/tests/gpu/{gpu_table,gpu_family_program})
  for file in "${programs[@]}" "$build/src/tool/hbmprof"; do
    [[ -x $file ]] && continue
    echo "gpu_test: $file does not exist: build it first, e.g. cmake --preset dev &&" \
      "cmake --build --preset dev --target gpu_table cuda_gpu_test inject_gpu_test" >&2
    exit 1
  done
  for file in "$build"/tests/gpu/{cuda_gpu_test,inject_gpu_test,gpu_program_*}; do
    if [[ -x $file ]]; then
      programs+=("$file")
    else
      echo "gpu_test: without $file, which needs a CUDA toolkit" >&2
    fi
  done
  rm -rf "$packed"
  mkdir -p "$packed/lib"
  cp "${programs[@]}" "$build/src/inject/libhbmprof_gpu.so" "$build/src/tool/hbmprof" "$packed"
  # The C and C++ libraries and CUDA of the other machine are used.
  for file in "$packed"/*; do
    [[ -f $file ]] || continue
    ldd "$file" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
  done | sort -u |
    grep -vE "/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*|libcuda$vendors)\.so" |
    xargs -r cp -L --no-preserve=mode -t "$packed/lib"
  find "$packed" -type f -exec strip --strip-debug {} +
  cp "$here/gpu_test.sh" "$packed"
  echo "gpu_test: $packed is ready: $(du -sh "$packed" | cut -f1)"
}

run() {
  if [[ ! -x $packed/gpu_table ]]; then
    echo "gpu_test: $packed/gpu_table does not exist: run \"scripts/gpu_test.sh pack\" where it was built" >&2
    exit 1
  fi
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  else
    echo "gpu_test: nvidia-smi is not found; without a GPU every test is skipped and prints the reason" >&2
  fi
  # Python's packages of NVIDIA's libraries have their own folders.
  local before=${LD_LIBRARY_PATH:-} wheels failed=0
  wheels=$(python3 -c 'import glob, sys
print(":".join(f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null || true)
  export LD_LIBRARY_PATH=$packed/lib:$before:/usr/local/cuda/lib64:$wheels
  "$packed/hbmprof" doctor --library "$packed/libhbmprof_gpu.so" || true
  GPU_TABLE_LIBRARY_PATH=$before "$packed/gpu_table" || failed=1
  local test
  for test in cuda_gpu_test inject_gpu_test; do
    [[ ! -x $packed/$test ]] || "$packed/$test" || failed=1
  done
  python_program torch 'libcublas|libcudnn' 'import torch
x = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
print(float(x(torch.rand(8, 3, 64, 64).cuda()).sum()))' || failed=1
  python_program jax 'libcublas|libcudnn|xla' 'import jax, jax.numpy as jnp
print(float(jnp.dot(jnp.ones((512, 512)), jnp.ones((512, 512))).sum()))' || failed=1
  exit "$failed"
}

# python_program MODULE LIBRARIES PROGRAM: runs PROGRAM under `hbmprof run` if Python has the module, and shows its memory.
# Fails if no stack contains one of the libraries.
python_program() {
  local module=$1 libraries=$2 program=$3 folder profile
  # Python runs without the packed libraries.
  local -a python=(env LD_LIBRARY_PATH="$before" python3)
  if ! "${python[@]}" -c "import $module" 2>/dev/null; then
    echo "gpu_test: Python has no $module: skipped"
    return 0
  fi
  folder=$(mktemp -d)
  "$packed/hbmprof" run --library "$packed/libhbmprof_gpu.so" --output "$folder" -- "${python[@]}" -c "$program" ||
    return 1
  profile=$(ls -S "$folder"/*.pb.gz | head -1)
  "$packed/hbmprof" top --type peak_space -n 30 "$profile"
  if ! "$packed/hbmprof" top --type alloc_space -n 0 "$profile" | grep -qE "$libraries"; then
    echo "gpu_test: FAILED: no stack of $module's program goes through $libraries" >&2
    return 1
  fi
}

if [[ ${1:-} == pack ]]; then
  pack "${@:2}"
elif [[ -x $here/gpu_table ]]; then
  packed=$here
  run
else
  packed=$here/../${1:-build/dev}/gpu
  [[ ${1:-} == /* ]] && packed=$1/gpu
  run
fi
