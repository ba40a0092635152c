#!/usr/bin/env bash
# Runs real programs with and without a leak, and prints what `hbmprof leaks` says from one dump of each
# (benchmarks/LEAKS.md). They need what scripts/pjrt_test.sh and scripts/test.sh install. HBMPROF_JAX is the folder of
# JAX, if that is not build/pypi.
#
# usage: benchmarks/leaks_of_programs.sh [BUILD]     BUILD: build/dev (default), with the targets of the tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$PWD/${1:-build/dev}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# verdict NAME DUMP
verdict() {
  echo "--- $1"
  "$build/src/tool/hbmprof" leaks --frames 2 "$2" || [[ $? == 1 ]]  # 1: there is a leak
}

shim=$build/src/inject/libhbmprof_pjrt.so
for program in leak bounded; do
  mkdir "$folder/$program"
  PYTHONPATH=${HBMPROF_JAX:-$PWD/build/pypi} JAX_PLATFORMS=wrapped PJRT_NAMES_AND_LIBRARY_PATHS=wrapped:$shim \
    HBMPROF_PJRT_PLUGIN=$PWD/build/pypi/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so \
    python3 tests/jax/manual_programs.py "$program" "$folder/$program" "$shim" 2>"$folder/errors" ||
    { cat "$folder/errors"; exit 1; }
  verdict "JAX's list, $program" "$folder/$program/ours.1.pb.gz"
done

doubles=$build/tests/support/fake_cudart
for program in leak serve; do
  LD_PRELOAD=$build/src/inject/libhbmprof_gpu.so HBMPROF_GPU_OUTPUT=$folder/torch.pb.gz \
    LD_LIBRARY_PATH=$doubles/cuda:$doubles/nvml:$build/tests/support/torch_cudart/12:$build/tests/support/torch_cudart/13 \
    python3 tests/inject/torch_program.py "$build/tests/inject/libinject_torch_library.so" \
    build/torch/newest/libc10_cuda.so "$program" 24
  verdict "PyTorch, $program" "$folder/torch.pb.gz"
done
