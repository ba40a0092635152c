#!/usr/bin/env bash
# Runs the tests of NVIDIA's driver libraries on more versions than scripts/test.sh: also on 580, 595 and 615, which only
# Ubuntu has (240 MB of packages). They are unpacked into build/driver, where the later runs of scripts/test.sh find them
# too. A version that cannot be had is left out, with a note. For x86-64.
#
# usage: scripts/drivers_test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
[[ $# == 0 ]] || hbmprof_die "there are no options"
[[ $(uname -m) == x86_64 ]] || hbmprof_die "only for x86-64"

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PYPI_PACKAGES[@]}"
hbmprof_step "CUDA's headers from PyPI" hbmprof_pypi nvidia/cu13/include/cuda.h 'nvidia-cuda-runtime>=13.5,<14'
hbmprof_step "an older CUDA runtime from PyPI" hbmprof_pypi nvidia/cuda_runtime nvidia-cuda-runtime-cu12==12.9.79
hbmprof_step "Debian's driver libraries" hbmprof_drivers bullseye bookworm trixie experimental
# Packages of a release (resolute) stay; those of its updates are replaced by later ones.
hbmprof_step "Ubuntu's driver libraries" hbmprof_ubuntu_drivers libnvidia-compute-580-server/resolute \
  libnvidia-compute-595/resolute libnvidia-compute-615/noble-updates
hbmprof_step "building" hbmprof_build dev driver_test attach_test tool_attach_command_test

failed=0
for tests in 'inject/driver_test' 'inject/attach_test *RealDrivers*' \
    'tool/attach/tool_attach_command_test AttachRealDriverTest.*'; do
  read -r program filter <<<"$tests"
  hbmprof_step "$program" "build/dev/tests/$program" --gtest_brief=1 --gtest_filter="${filter:-*}" || failed=1
done
hbmprof_step "the headers declare what the drivers export" ctest --test-dir build/dev --output-on-failure \
  -R '^backends\.entry_points\.' || failed=1
ls build/driver
exit "$failed"
