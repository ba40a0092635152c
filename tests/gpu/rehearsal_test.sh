#!/usr/bin/env bash
# Packs the folder for a machine with a GPU, and runs it on the substitute driver from beginning to end. Stand-ins for
# nsys and compute-sanitizer load a tool's library as those do.
#
# usage: rehearsal_test.sh REPOSITORY BUILD_DIR TORCH_PROGRAM TOOL_LIBRARY FOLDERS
set -euo pipefail
repository=$1 build=$2 torch_program=$3 tool=$4 folders=$5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mkdir "$scratch/tools"
for name in nsys compute-sanitizer; do
  printf '#!/usr/bin/env bash\nwhile [[ $1 != env ]]; do shift; done\nCUDA_INJECTION64_PATH=%q exec "$@"\n' "$tool" \
    >"$scratch/tools/$name"
  chmod +x "$scratch/tools/$name"
done
torch=$repository/build/torch/newest/libc10_cuda.so
[[ ! -e $torch ]] || export GPU_TABLE_TORCH="env LD_LIBRARY_PATH=$folders $torch_program $torch"

"$repository/scripts/gpu_test.sh" pack --to "$scratch/gpu" "$build"
LD_LIBRARY_PATH=$folders PATH=$scratch/tools:$PATH GPU_TABLE_CALLS=200 \
  "$scratch/gpu/gpu_test.sh" | tee "$scratch/out"

# Every line that is possible here is there and right.
for line in linear vmm graph "pinned: the process's address space" "PyTorch: allocated bytes" \
  "cost: recorded allocations" "cost: recorded blocks of PyTorch" "beside nsys"; do
  [[ $line == *PyTorch* && ! -e $torch ]] || grep -q "^| ok | $line" "$scratch/out" ||
    { echo "no line '$line' is ok" >&2; exit 1; }
done
if grep -q FAILED <(grep '^|' "$scratch/out"); then exit 1; fi
