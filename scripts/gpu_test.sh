#!/usr/bin/env bash
# Runs the tests that need a GPU, on a machine that has one and nothing else of ours: no network, no packages.
#
# usage: scripts/gpu_test.sh pack [BUILD_DIR]   on the machine that built: gathers the tests and the libraries they need
#                                               in BUILD_DIR/gpu
#        scripts/gpu_test.sh [BUILD_DIR]        on the machine with the GPU: runs them
#
# BUILD_DIR is build/release if it is not given. Take the whole folder BUILD_DIR/gpu along with this script. Exits with 1
# if a test failed; tests that cannot run skip and say why.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=run
if [[ ${1:-} == pack ]]; then
  mode=pack
  shift
fi
build=${1:-build/release}
packed=$build/gpu

pack() {
  local file
  local -a programs=("$build"/tests/gpu/{cuda_gpu_test,inject_gpu_test} "$build"/tests/gpu/gpu_program_*)
  if [[ ! -x ${programs[0]} ]]; then
    echo "gpu_test: ${programs[0]} is not there: build with a CUDA toolkit first, e.g. cmake --preset release &&" \
      "cmake --build --preset release --target cuda_gpu_test inject_gpu_test hbmprof_tool" >&2
    exit 1
  fi
  rm -rf "$packed"
  mkdir -p "$packed/lib"
  cp "${programs[@]}" "$build/src/inject/libhbmprof_cuda.so" "$build/src/tool/hbmprof" "$packed"
  # The C and C++ libraries are the other machine's own, and so is CUDA.
  for file in "$packed"/*; do
    [[ -f $file ]] || continue
    ldd "$file" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
  done | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*|libcuda|libcublas[^/]*)\.so' |
    xargs -r cp -L -t "$packed/lib"
  strip --strip-debug "$packed"/*.so "$packed"/lib/* $(find "$packed" -maxdepth 1 -type f -perm -u+x)
  echo "gpu_test: $packed is ready: $(du -sh "$packed" | cut -f1)"
}

run() {
  if [[ ! -x $packed/inject_gpu_test ]]; then
    echo "gpu_test: $packed is not there: run \"scripts/gpu_test.sh pack $build\" where it was built" >&2
    exit 1
  fi
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  else
    echo "gpu_test: nvidia-smi is not found; without a GPU every test skips and says why" >&2
  fi
  export LD_LIBRARY_PATH=$PWD/$packed/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
  local failed=0
  "$packed/hbmprof" doctor --library "$packed/libhbmprof_cuda.so" || true
  "$packed/cuda_gpu_test" || failed=1
  "$packed/inject_gpu_test" || failed=1
  python_program torch 'import torch
x = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
print(float(x(torch.rand(8, 3, 64, 64).cuda()).sum()))' || failed=1
  python_program jax 'import jax, jax.numpy as jnp
print(float(jnp.dot(jnp.ones((512, 512)), jnp.ones((512, 512))).sum()))' || failed=1
  exit "$failed"
}

# python_program MODULE PROGRAM: runs it under `hbmprof run` where Python has the module, and shows what it held.
python_program() {
  local module=$1 program=$2 folder
  if ! env -u LD_LIBRARY_PATH python3 -c "import $module" 2>/dev/null; then
    echo "gpu_test: Python has no $module: skipped"
    return 0
  fi
  folder=$(mktemp -d)
  "$packed/hbmprof" run --library "$packed/libhbmprof_cuda.so" --output "$folder" -- python3 -c "$program" || return 1
  "$packed/hbmprof" top --type peak_space "$(ls -S "$folder"/*.pb.gz | head -1)" | head -30
}

"$mode"
