#!/usr/bin/env bash
# Builds the packages of this version for x86-64 Linux with glibc 2.17 or later, into build/package:
#   hbmprof-VERSION-linux-x86_64.tar.gz            the command, the libraries and the headers; unpack it anywhere
#   hbmprof-VERSION-py3-none-manylinux_2_17_x86_64.whl   the same for pip, with the Python package
#   hbmprof_VERSION_amd64.deb                      for Debian 11 and later and Ubuntu 20.04 and later
# and SHA256SUMS. Equal sources and equal Debian packages give equal bytes. On Debian 12 it installs what it needs (with root or sudo).
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

version=$(sed -n 's/^#define HBMPROF_VERSION_[MP][A-Z]* //p' include/hbmprof/version.h | paste -sd.)
[[ $version == *.*.* ]] || hbmprof_die "include/hbmprof/version.h does not have the three numbers of the version"
build=$PWD/build/package
# All files get the time of the last commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y include/hbmprof/version.h)
export SOURCE_DATE_EPOCH

# Gets cpp-httplib as one header, from Debian's source package with Debian's patches. Debian's binary packages have a
# header and a shared library instead.
fetch_httplib() {
  [[ ! -e $build/httplib/httplib.h ]] || return 0
  local folder=$build/httplib.new
  rm -rf "$folder"
  hbmprof_debian_source cpp-httplib "$folder"
  mkdir -p "$build/httplib"
  cp "$folder"/cpp-httplib-*/httplib.h "$folder"/cpp-httplib-*/LICENSE "$build/httplib/"
  rm -rf "$folder"
}

# The tree that all packages contain, in build/package/tree.
build_tree() {
  cmake -S . -B "$build/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHBMPROF_PORTABLE=ON \
    -DHBMPROF_HTTPLIB_INCLUDE="$build/httplib" -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR=lib -DHBMPROF_CUDA=OFF \
    -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$PWD=." >"$build/configure.log"
  cmake --build "$build/cmake" >"$build/build.log" || { tail -n 30 "$build/build.log" >&2; return 1; }
  rm -rf "$build/tree"
  DESTDIR=$build/tree cmake --install "$build/cmake" --strip >"$build/install.log"
  local doc=$build/tree/usr/share/doc/hbmprof
  mkdir -p "$doc"
  python3 scripts/contents.py notices "$build/httplib/LICENSE" >"$doc/NOTICES"
  python3 scripts/contents.py sbom "$version" >"$doc/hbmprof.cdx.json"
  cp README.md "$doc/"
}

build_tar() {
  local name=hbmprof-$version-linux-x86_64
  tar --create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --transform "s,^\./,$name/," --file "$build/out/$name.tar.gz" -C "$build/tree/usr" ./bin ./include ./lib ./share
}

build_wheel() {
  local root=$build/wheel info data
  rm -rf "$root"
  info=$root/hbmprof-$version.dist-info
  data=$root/hbmprof-$version.data
  mkdir -p "$info" "$data/scripts" "$data/data"
  cp -r python/hbmprof "$root/"
  rm -rf "$root/hbmprof/__pycache__"
  cp "$build/tree/usr/bin/hbmprof" "$data/scripts/"
  cp -r "$build"/tree/usr/{lib,include,share} "$data/data/"
  cp LICENSE "$build/tree/usr/share/doc/hbmprof/NOTICES" "$info/"
  cat >"$info/METADATA" <<EOF
Metadata-Version: 2.1
Name: hbmprof
Version: $version
Summary: The heap profiler for accelerator memory
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

$(cat README.md)
EOF
  cat >"$info/WHEEL" <<EOF
Wheel-Version: 1.0
Generator: hbmprof
Root-Is-Purelib: false
Tag: py3-none-manylinux_2_17_x86_64
EOF
  printf '[pytest11]\nhbmprof = hbmprof.pytest_plugin\n' >"$info/entry_points.txt"
  PYTHONPATH=$PWD/build/pypi python3 -m wheel pack --dest-dir "$build/out" "$root" >/dev/null
}

build_deb() {
  local root=$build/deb
  rm -rf "$root"
  cp -a "$build/tree" "$root"
  mkdir -p "$root/DEBIAN"
  mv "$root/usr/share/doc/hbmprof/LICENSE" "$root/usr/share/doc/hbmprof/copyright"
  cat >"$root/DEBIAN/control" <<EOF
Package: hbmprof
Version: $version
Architecture: amd64
Maintainer: The hbmprof authors <hbmprof@localhost>
Section: devel
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: libc6 (>= 2.17)
Description: heap profiler for accelerator memory
 hbmprof records every live GPU or TPU buffer of a process with the call stack
 that allocated it, and writes profiles that pprof reads.
EOF
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group --build "$root" "$build/out/hbmprof_${version}_amd64.deb" >/dev/null
}

hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PYPI_PACKAGES[@]}" dpkg-dev libbz2-dev liblzma-dev
hbmprof_pypi wheel wheel==0.45.1
rm -rf "$build/out"
mkdir -p "$build/out"
hbmprof_step "cpp-httplib's header from Debian's source package" fetch_httplib
hbmprof_step "building" build_tree
hbmprof_step "tar.gz" build_tar
hbmprof_step "wheel" build_wheel
hbmprof_step "deb" build_deb
(cd "$build/out" && sha256sum -- hbmprof* | tee SHA256SUMS)
