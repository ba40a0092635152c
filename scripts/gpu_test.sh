#!/usr/bin/env bash
# Runs the tests that need a GPU from an existing build. Builds nothing and needs no network.
# usage: scripts/gpu_test.sh [BUILD_DIR]   (default: build/release)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
program=$build/tests/gpu/cuda_gpu_test
if [[ ! -x $program ]]; then
  echo "gpu_test: $program is not there: build with a CUDA toolkit first, e.g." \
    "cmake --preset release && cmake --build --preset release --target cuda_gpu_test" >&2
  exit 1
fi
if ! command -v nvidia-smi >/dev/null; then
  echo "gpu_test: nvidia-smi is not found; without a GPU every test skips and says why" >&2
else
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
# The program itself, not ctest: the build may have been made in another place.
exec "$program"
