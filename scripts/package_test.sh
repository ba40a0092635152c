#!/usr/bin/env bash
# Installs the packages of build/package/out (scripts/package.sh) into clean systems and uses them there.
#
# usage: scripts/package_test.sh [SUITE...]     Debian's suites; default: bullseye bookworm trixie (11, 12, 13)
#
# For each suite, installs a minimal system in build/package/roots/SUITE with debootstrap, once. Makes a copy of this
# folder for each package and runs these steps in the copy, with chroot:
#   wheel  pip installs it; `hbmprof run -- python3 examples/serve.py` on the tests' substitute of the driver; the profile
#          is compared with the bytes that the program holds; top, diff, leaks, report, symbolize, check, doctor; the Python
#          package; the pytest plugin; pip uninstalls it
#   deb    dpkg installs and removes it
#   tar    is unpacked in two folders and used from both
# Prints a table and exits with 1 if a step failed. Needs root, debootstrap and the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
[[ $(id -u) == 0 ]] || hbmprof_die "scripts/package_test.sh needs root, for chroot"
suites=("$@")
[[ $# -gt 0 ]] || suites=(bullseye bookworm trixie)
hbmprof_install debootstrap g++ python3-pip
package=$PWD/build/package
compgen -G "$package/out/*.whl" >/dev/null || hbmprof_die "build/package/out has no wheel: run scripts/package.sh first"

# The substitute of the CUDA driver. It runs on old systems, too.
files=$package/test_files
rm -rf "$files"
mkdir -p "$files/cuda"
g++ -std=c++17 -O1 -g -shared -fPIC -fvisibility=default -I. -Iinclude -ffunction-sections -fdata-sections -fno-builtin \
  -static-libstdc++ -static-libgcc -Wl,-Bsymbolic,--gc-sections,-soname,libcuda.so.1 -o "$files/cuda/libcuda.so.1" \
  tests/support/fake_cudart/fake_cuda.cc tests/support/fake_cudart/fake_driver.cc src/base/old_glibc.cc src/base/forked_child.cc \
  -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--pop-state
cp examples/serve.py tests/package/use.sh tests/package/leak_test.py "$files/"
cp "$package"/out/* "$files/"

failed=0
rows=()
for suite in "${suites[@]}"; do
  root=$package/roots/$suite
  if [[ ! -e $root/ready ]]; then
    rm -rf "$root"
    mkdir -p "$root"
    hbmprof_step "a root with Debian's $suite" debootstrap --variant=minbase --include=python3-minimal,python3-venv,python3-pip \
      "$suite" "$root" >"$package/debootstrap.$suite.log" || hbmprof_die "debootstrap failed: $package/debootstrap.$suite.log"
    touch "$root/ready"
  fi
  libc=$(chroot "$root" ldd --version | sed -n '1s/.* //p')
  for kind in wheel deb tar; do
    copy=$package/roots/$suite.$kind
    rm -rf --one-file-system "$copy"
    cp -a --reflink=auto "$root" "$copy"
    cp -r "$files" "$copy/files"
    mkdir -p "$copy/proc"
    mount -t proc proc "$copy/proc"
    log=$package/$suite.$kind.log
    result=passed
    chroot "$copy" /bin/bash /files/use.sh "$kind" >"$log" 2>&1 || { result="FAILED ($log)"; failed=1; tail -n 15 "$log"; }
    umount "$copy/proc"
    rm -rf --one-file-system "$copy"
    rows+=("$suite (glibc $libc) | $kind | $result")
    echo "${rows[-1]}"
  done
done
printf '%s\n' "" "system | package | result" "${rows[@]}"
exit $failed
