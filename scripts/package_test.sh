#!/usr/bin/env bash
# Installs the packages of build/package/out (scripts/package.sh) into clean systems and uses them there.
#
# usage: scripts/package_test.sh [SUITE...]     default: bullseye bookworm trixie forky (Debian 11 to 14). Others:
#            bionic focal jammy noble resolute (Ubuntu 18.04 to 26.04), which need a mirror of Ubuntu's archive
#        scripts/package_test.sh --arch aarch64    the packages for aarch64, with qemu
#
# For each suite, it installs a minimal system in build/package/roots/SUITE with debootstrap, once. For aarch64, the
# system consists of Debian's packages for arm64, which are only unpacked. It makes a copy of this folder for each
# package and runs these steps in the copy, with chroot (tests/package/use.sh):
#   wheel  pip installs it; `hbmprof run -- python3 examples/serve.py` on the tests' substitute of the driver; the
#          profile is compared with the bytes that the program holds; top, diff, leaks, report, symbolize, check, doctor;
#          a recording; a program with musl; the Python package; pip uninstalls it
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
source scripts/lib/roots.sh
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
  [[ $# -gt 0 ]] || suites=(bullseye bookworm trixie forky)
  kinds+=(tests)
  hbmprof_install debootstrap musl-tools
fi
package=$PWD/build/package
cmake=$package/$arch/cmake
compgen -G "$package/out/*$arch.whl" >/dev/null ||
  hbmprof_die "build/package/out has no wheel for $arch: run scripts/package.sh first"

# Unpacks the keys of Ubuntu's archive into build/package/ubuntu-keyring, once. Debian 12 has no package of them.
get_ubuntu_keyring() {
  local folder=$package/ubuntu-keyring
  [[ ! -e $folder/usr ]] || return 0
  rm -rf "$folder"
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
  echo 'deb http://deb.debian.org/debian trixie main' >"$folder/sources.list"
  local apt=(-qq -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update && (cd "$folder" && apt-get "${apt[@]}" download ubuntu-keyring) &&
    dpkg -x "$folder"/ubuntu-keyring_*.deb "$folder"
}

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
    # Debian 12's debootstrap has no scripts for newer suites. Every suite of Debian has the script `sid`, and every
    # suite of Ubuntu has the script `gutsy`.
    local options=(--include=binutils,python3-minimal,python3-venv,python3-pip) script=sid
    case $1 in
      bionic | focal | jammy | noble | resolute)
        get_ubuntu_keyring
        options+=(--components=main,universe
          --keyring="$package/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg")
        script=gutsy ;;
    esac
    hbmprof_debootstrap "$1" "$script" "$root" "${options[@]}"
    if [[ $1 == bionic ]]; then  # hbmprof does not read its Python 3.6
      sed -i 'p; s/bionic/bionic-updates/' "$root/etc/apt/sources.list"
      chroot "$root" apt-get -qq update
      DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get -qq install -y --no-install-recommends python3.8
      ln -s ../../bin/python3.8 "$root/usr/local/bin/python3"
    fi
    touch "$root/ready"
  fi
}

# in_root ROOT CMAKE COMMAND...: hbmprof_in_root. CMAKE, if it is not empty, is the build folder: it appears in ROOT
# under its own path, with the libraries of /opt/hbmprof in the place of its own.
in_root() {
  local root=$1 cmake=$2 name
  shift 2
  if [[ -n $cmake ]]; then
    mkdir -p "$root$cmake"
    mount -o bind,ro "$cmake" "$root$cmake"
    for name in gpu pjrt; do
      mount --bind "$root/opt/hbmprof/lib/hbmprof/libhbmprof_$name.so" "$root$cmake/src/inject/libhbmprof_$name.so"
    done
    if [[ -e build/pypi ]]; then  # the real CUDA runtimes with which programs of the tests were linked
      mkdir -p "$root$PWD/build/pypi"
      mount -o bind,ro "$(realpath build/pypi)" "$root$PWD/build/pypi"
    fi
  fi
  hbmprof_in_root "$root" "$@"
}
export -f in_root

# try SUITE KIND: the steps for one package in one system. Returns 1 if one failed.
try() {
  local root=$package/roots/$1.$2 folder=
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$package/roots/$1" "$root"
  cp -r "$files" "$root/files"
  [[ $arch == aarch64 ]] || cp /lib/ld-musl-x86_64.so.1 "$root/lib/"
  if [[ $2 == tests ]]; then
    folder=$cmake
    mkdir -p "$root/opt/hbmprof" "$root$PWD/tests/inject"
    tar -xzf "$package"/out/*"$arch".tar.gz -C "$root/opt/hbmprof" --strip-components=1
    cp README.md "$root$PWD/"
    cp tests/inject/ended_program.py "$root$PWD/tests/inject/"
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
if [[ $arch == x86_64 ]]; then
  musl-gcc -o "$files/musl_program" tests/inject/exit_program.c
else
  deb_arch=arm64
fi
cp "$package"/out/*"$arch".* "$package"/out/*"$deb_arch".deb "$files/"

failed=0
rows=()
for suite in "${suites[@]}"; do
  [[ $arch == x86_64 ]] || suite+=.arm64
  hbmprof_step "a system: $suite" make_root "$suite"
  libc=$(strings "$(find "$package/roots/$suite" -name libc.so.6 -print -quit)" |
    sed -n 's/^GNU C Library.*version \([0-9.]*[0-9]\).*/\1/p')
  for kind in "${kinds[@]}"; do
    case $suite.$kind in
      bionic.wheel) continue ;;  # its pip 9 is older than 19.3
      bionic.tests) continue ;;  # the test programs need glibc 2.29
      focal.tests) continue ;;   # a test reads versions of symbols, which nm prints since binutils 2.35
    esac
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
