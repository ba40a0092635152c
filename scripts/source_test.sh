#!/usr/bin/env bash
# Builds the packages of debian/, and installs the sdist with pip, in bare systems with nothing but the suite's own
# packages, and uses both there.
#
# usage: scripts/source_test.sh [SUITE...]     default: bookworm trixie (Debian 12 and 13)
#
# debootstrap installs a bare system of each suite (minbase) in build/package/bare, once. The steps run in copies of it:
#   build   `apt-get build-dep`, `dpkg-buildpackage`; lintian finds no error
#   debian  apt installs the packages; the command, the Python package are used, and debian/tests are run; the
#           libraries are those of the suite: no package contains a copy of them
#   sdist   python3 -m build makes the sdist; pip installs it with the packages that docs/install.md names
# tests/package/use.sh uses them on the tests' substitute of the driver. Prints a table with the sizes, and exits with 1
# if anything failed. It needs root, debootstrap and the network; an hour for each suite on two cores. If ccache is
# installed, the builds use it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
source scripts/lib/roots.sh
[[ $(id -u) == 0 ]] || hbmprof_die "scripts/source_test.sh needs root, for chroot"
suites=("$@")
[[ $# -gt 0 ]] || suites=(bookworm trixie)
hbmprof_install debootstrap git
version=$(sed -n 's/^#define HBMPROF_VERSION_[MP][A-Z]* //p' include/hbmprof/version.h | paste -sd.)
bare=$PWD/build/package/bare
mkdir -p "$bare"

# make_bare SUITE: a bare system.
make_bare() {
  local root=$bare/$1
  [[ ! -e $root/ready ]] || return 0
  hbmprof_debootstrap "$1" sid "$root"
  hbmprof_copy_network "$root"
  printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >"$root/etc/apt/apt.conf.d/99assume"
  touch "$root/ready"
}

# in_copy ROOT COMMAND...: runs the command in ROOT.
in_copy() {
  local root=$1 name mounts=:
  shift
  local environment=(HOME=/root TERM=dumb LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST \
      CMAKE_C{,XX}_COMPILER_LAUNCHER CCACHE_NOHASHDIR CCACHE_SLOPPINESS CCACHE_MAXSIZE; do
    [[ -z ${!name-} ]] || environment+=("$name=${!name}")
  done
  if [[ -n ${CMAKE_CXX_COMPILER_LAUNCHER-} ]]; then
    environment+=(CCACHE_DIR=/ccache CCACHE_BASEDIR=/srv/hbmprof)
    mkdir -p "$root/ccache"
    mounts='mount --bind "$(ccache --get-config cache_dir)" "$1/ccache"'
  fi
  unshare --mount bash -euo pipefail -c "$mounts && "'hbmprof_in_root "$@"' bash "$root" env -i "${environment[@]}" "$@"
}

# copy SUITE KIND: a new copy of the bare system, with the files that the steps need in /files.
copy() {
  local root=$bare/$1.$2
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$bare/$1" "$root"
  copy_sources "$root/files/hbmprof"
  cp examples/serve.py tests/package/{use.sh,leak_test.py} "$root/files/"
}

# The sources, as git has them, changes that are not committed included.
copy_sources() {
  mkdir -p "$1"
  git ls-files | tar -cf - --verbatim-files-from -T - | tar -xf - -C "$1"
}

# build SUITE: the packages of Debian, the sdist and the substitute of the driver, all in /srv of its system.
build() {
  local root=$bare/$1.build
  copy "$1" build
  copy_sources "$root/srv/hbmprof"
  rm -r "$root/srv/hbmprof/tests/fuzz/elf_corpus"  # Files-Excluded in debian/copyright
  tar -C "$root/srv" --exclude=hbmprof/debian --sort=name -czf "$root/srv/hbmprof_$version.orig.tar.gz" hbmprof
  in_copy "$root" bash /files/use.sh build
}

# use SUITE KIND: the steps of tests/package/use.sh with the files of the build.
use() {
  local root=$bare/$1.$2 from=$bare/$1.build/srv
  copy "$1" "$2"
  cp -r "$from/cuda" "$root/files/"
  case $2 in
    debian) find "$from" -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' -exec cp -t "$root/files/" {} + ;;
    sdist) cp "$from"/dist/hbmprof-"$version".tar.gz "$root/files/" ;;
  esac
  in_copy "$root" bash /files/use.sh "$2"
}

failed=0
rows=()
for suite in "${suites[@]}"; do
  hbmprof_step "a bare system: $suite" make_bare "$suite"
  for kind in build debian sdist; do
    log=$bare/$suite.$kind.log
    result=passed
    hbmprof_step "$suite: $kind" "$([[ $kind == build ]] && echo build || echo use)" "$suite" "$kind" >"$log" 2>&1 ||
      { result="FAILED ($log)"; failed=1; tail -n 15 "$log"; }
    rows+=("$suite | $kind | $result")
    echo "${rows[-1]}"
    [[ $result == passed ]] || break
  done
  (cd "$bare/$suite.build/srv" && du -h --apparent-size ./*.deb dist/*) || true
done
printf '%s\n' "" "system | step | result" "${rows[@]}"
exit $failed
