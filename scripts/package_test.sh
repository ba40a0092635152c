#!/usr/bin/env bash
# Installs the packages of build/package/out (scripts/package.sh) into clean systems and uses them there.
#
# usage: scripts/package_test.sh [SUITE...]     Debian's suites; default: bullseye bookworm trixie (11, 12, 13)
#        scripts/package_test.sh --arch aarch64    the packages for aarch64, with qemu
#
# For each suite, it installs a minimal system in build/package/roots/SUITE with debootstrap, once. For aarch64, the
# system consists of Debian's packages for arm64, which are only unpacked. It makes a copy of this folder for each
# package and runs these steps in the copy, with chroot (tests/package/use.sh):
#   wheel  pip installs it; `hbmprof run -- python3 examples/serve.py` on the tests' substitute of the driver; the
#          profile is compared with the bytes that the program holds; top, diff, leaks, report, symbolize, check, doctor;
#          a recording; the Python package; pip uninstalls it
#   deb    dpkg installs and removes it
#   tar    is unpacked and used; a copy of its folder, as an init container makes it, is used
#   tests  the tests of the injected libraries, with the libraries of the tar.gz in the place of those of the build. Not
#          for aarch64 (scripts/arm64.sh)
# Then it measures what the packages cost (scripts/package_cost.py). It prints a table and exits with 1 if anything
# failed. It needs root, debootstrap and the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
source scripts/lib/arm64.sh
[[ $(id -u) == 0 ]] || hbmprof_die "scripts/package_test.sh needs root, for chroot"
arch=x86_64
if [[ ${1-} == --arch ]]; then
  [[ $# == 2 && $2 == aarch64 ]] || hbmprof_die "unknown arguments '$*': use suites, or --arch aarch64"
  arch=aarch64
  shift 2
fi
suites=("$@")
kinds=(wheel deb tar)
# Other tests of the injected libraries have programs that need a newer C library themselves.
tests=(inject_test pjrt_plugin_test)
if [[ $arch == aarch64 ]]; then
  suites=(bookworm)
  hbmprof_install qemu-user-static
else
  [[ $# -gt 0 ]] || suites=(bullseye bookworm trixie)
  kinds+=(tests)
  hbmprof_install debootstrap
fi
package=$PWD/build/package
cmake=$package/$arch/cmake
compgen -G "$package/out/*$arch.whl" >/dev/null ||
  hbmprof_die "build/package/out has no wheel for $arch: run scripts/package.sh first"

# make_root SUITE: a clean system in build/package/roots/SUITE.
make_root() {
  local root=$package/roots/$1 name version
  if [[ $arch == aarch64 ]]; then
    hbmprof_arm64_unpack "$root" base-files base-passwd bash coreutils dash diffutils dpkg findutils grep gzip \
      libc-bin python3 python3-pip python3-venv sed tar
    mkdir -p "$root"/{dev,proc,root,tmp,var/lib/dpkg/updates}
    while read -r name version; do
      printf '%s\n' "Package: $name" "Status: install ok installed" "Maintainer: Debian" "Architecture: arm64" \
        "Version: $version" "Description: unpacked" ""
    done <"$root/packages" >"$root/var/lib/dpkg/status"
  elif [[ ! -e $root/ready ]]; then
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=binutils,python3-minimal,python3-venv,python3-pip "$1" "$root" \
      >"$package/debootstrap.$1.log" || hbmprof_die "debootstrap failed: $package/debootstrap.$1.log"
    touch "$root/ready"
  fi
}

# in_root ROOT CMAKE COMMAND...: runs the command in ROOT. CMAKE, if it is not empty, is the build folder: it appears in
# ROOT under its own path, with the libraries of /opt/hbmprof in the place of its own. Its mounts need a namespace of
# their own.
in_root() {
  local root=$1 cmake=$2 name
  shift 2
  for name in proc dev; do mount --rbind "/$name" "$root/$name"; done
  if [[ -n $cmake ]]; then
    mkdir -p "$root$cmake"
    mount -o bind,ro "$cmake" "$root$cmake"
    for name in cuda pjrt; do
      mount --bind "$root/opt/hbmprof/lib/hbmprof/libhbmprof_$name.so" "$root$cmake/src/inject/libhbmprof_$name.so"
    done
  fi
  chroot "$root" "$@"
}
export -f in_root

# try SUITE KIND: the steps for one package in one system. Returns 1 if one failed.
try() {
  local root=$package/roots/$1.$2 folder=
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$package/roots/$1" "$root"
  cp -r "$files" "$root/files"
  if [[ $2 == tests ]]; then
    folder=$cmake
    mkdir -p "$root/opt/hbmprof" "$root$PWD"
    tar -xzf "$package"/out/*"$arch".tar.gz -C "$root/opt/hbmprof" --strip-components=1
    cp README.md "$root$PWD/"
  fi
  local command=(in_root "$root" "$folder" /bin/bash /files/use.sh "$2") status=0
  [[ $2 != tests ]] || command+=("$cmake/tests" "${tests[@]}")
  if [[ $arch == aarch64 ]]; then
    hbmprof_arm64_namespace / "${command[@]}" || status=1
  else
    unshare --mount bash -euo pipefail -c '"$@"' bash "${command[@]}" || status=1
  fi
  rm -rf --one-file-system "$root"
  return $status
}

# What the steps need: the packages, programs, and the substitute of the CUDA driver, which runs on old systems, too.
files=$package/test_files
targets=(fake_cuda)
[[ $arch == aarch64 ]] || targets+=("${tests[@]}")
hbmprof_step "building the tests" cmake --build "$cmake" --target "${targets[@]}" >"$package/tests.$arch.log" ||
  { tail -n 30 "$package/tests.$arch.log"; exit 1; }
rm -rf "$files"
mkdir -p "$files/cuda"
cp "$cmake"/tests/support/fake_cudart/cuda/libcuda.so.1 "$files/cuda/"
cp examples/serve.py tests/package/use.sh tests/package/leak_test.py "$files/"
deb_arch=amd64
[[ $arch == x86_64 ]] || deb_arch=arm64
cp "$package"/out/*"$arch".* "$package"/out/*"$deb_arch".deb "$files/"

failed=0
rows=()
for suite in "${suites[@]}"; do
  [[ $arch == x86_64 ]] || suite+=.arm64
  hbmprof_step "a system with Debian's $suite" make_root "$suite"
  libc=$(strings "$(find "$package/roots/$suite" -name libc.so.6 -print -quit)" |
    sed -n 's/^GNU C Library.*version \([0-9.]*[0-9]\).*/\1/p')
  for kind in "${kinds[@]}"; do
    log=$package/$suite.$kind.log
    result=passed
    try "$suite" "$kind" >"$log" 2>&1 || { result="FAILED ($log)"; failed=1; tail -n 15 "$log"; }
    rows+=("$suite (glibc $libc) | $kind | $result")
    echo "${rows[-1]}"
  done
done
hbmprof_step "sizes and times" python3 scripts/package_cost.py "$package/$arch/tree/usr" || failed=1
printf '%s\n' "" "system | package | result" "${rows[@]}"
exit $failed
