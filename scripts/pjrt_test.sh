#!/usr/bin/env bash
# Runs the PJRT tests that need large downloads from PyPI (into build/pypi): JAX (150 MB) on the wrapped CPU plugin,
# compared with JAX's own profiles; and, on request, libtpu (140 MB) through the wrapper. Without a TPU, the test of
# libtpu expects the error of libtpu.
#
# usage: scripts/pjrt_test.sh [--libtpu]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

libtpu=
for argument in "$@"; do
  [[ $argument == --libtpu ]] || hbmprof_die "no option '$argument': there is --libtpu"
  libtpu=1
done

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PYPI_PACKAGES[@]}"
hbmprof_step "the CPU plugin" hbmprof_pypi xla_plugins/xla_cpu_pjrt xla-cpu-pjrt==0.0.1
# The release of JAX that fits the plugin: both use PJRT 0.81 or a version close to it.
hbmprof_step "JAX" hbmprof_pypi jax jax==0.8.1 jaxlib==0.8.1 protobuf
hbmprof_step "building" hbmprof_build dev hbmprof_pjrt pjrt_host hbmprof_tool

shim=build/dev/src/inject/libhbmprof_pjrt.so
plugin=build/pypi/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so
failed=0
hbmprof_step "JAX's profile and ours" python3 tests/jax/compare.py "$PWD/$shim" "$PWD/$plugin" "$PWD/build/pypi" \
  "$PWD/proto" || failed=1
hbmprof_step "the programs of JAX's manual" python3 tests/jax/manual.py "$PWD/$shim" "$PWD/$plugin" "$PWD/build/pypi" \
  "$PWD/build/dev/src/tool/hbmprof" || failed=1

# host PLUGIN: prints the output of a program that uses the plugin, without the plugin's log.
host() {
  TPU_SKIP_MDS_QUERY=1 HBMPROF_PJRT_PLUGIN=$PWD/build/pypi/libtpu/libtpu.so build/dev/tests/backends/pjrt_host "$1" \
    2>/dev/null
}
compare_libtpu() {
  local bare wrapped
  bare=$(host "$PWD/build/pypi/libtpu/libtpu.so")
  wrapped=$(host "$PWD/$shim")
  echo "$wrapped"
  [[ $wrapped == "$bare" ]] || { echo "error: without the wrapper the output is: $bare" >&2; return 1; }
}
if [[ -n $libtpu ]]; then
  hbmprof_step "libtpu" hbmprof_pypi libtpu libtpu
  hbmprof_step "libtpu through the wrapper says what it says without" compare_libtpu || failed=1
fi
exit "$failed"
