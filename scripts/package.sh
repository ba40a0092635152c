#!/usr/bin/env bash
# Builds the packages of this version for Linux with glibc 2.17 or later, into build/package/out:
#   hbmprof-VERSION-linux-x86_64.tar.gz            the command, the libraries and the headers; unpack it anywhere
#   hbmprof-VERSION-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl   the same for pip, with the Python package
#   hbmprof_VERSION_amd64.deb                      for Debian 11 and later and Ubuntu 18.04 and later
# and SHA256SUMS of all packages there. Equal sources and equal Debian packages give equal bytes.
#
# usage: scripts/package.sh [--arch x86_64|aarch64]      default: x86_64
#
# On Debian 12 on x86-64 it installs the packages that it needs (with root or sudo). The packages for aarch64 are built
# with a cross compiler; libraries to link come from Debian's packages for arm64 (scripts/lib/arm64.sh).
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
source scripts/lib/arm64.sh

case "$*" in
  "" | "--arch x86_64") arch=x86_64 deb_arch=amd64 ;;
  "--arch aarch64") arch=aarch64 deb_arch=arm64 ;;
  *) hbmprof_die "unknown arguments '$*': use no argument, --arch x86_64 or --arch aarch64" ;;
esac
version=$(sed -n 's/^#define HBMPROF_VERSION_[MP][A-Z]* //p' include/hbmprof/version.h | paste -sd.)
[[ $version == *.*.* ]] || hbmprof_die "include/hbmprof/version.h does not have the three numbers of the version"
package=$PWD/build/package
build=$package/$arch
# All files get the time of the last commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y include/hbmprof/version.h)
export SOURCE_DATE_EPOCH

# The wheel, and in build/package/ARCH/tree its files, which the other packages contain, too. The tests, which need the
# examples, are only configured; scripts/package_test.sh builds and runs some of them.
build_wheel() {
  local options=() name value
  if [[ $arch == aarch64 ]]; then
    hbmprof_arm64_unpack "$PWD/build/arm64-sysroot" "${HBMPROF_ARM64_PACKAGES[@]}"
    options=(--config-settings cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake")
  fi
  for value in HBMPROF_PORTABLE=ON HBMPROF_CUDA=OFF HBMPROF_BUILD_TESTS=ON HBMPROF_PRECOMPILE_TEST_HEADERS=OFF \
      CMAKE_CXX_FLAGS="-ffile-prefix-map=$PWD=."; do
    options+=(--config-settings "cmake.define.$value")
  done
  rm -rf "$build/wheel" "$build/tree"
  mkdir -p "$build"
  # With the system's CMake, because scripts/package_test.sh builds in the same folder.
  PYTHONPATH=$PWD/build/pypi CMAKE_EXECUTABLE=/usr/bin/cmake python3 -m pip -v wheel . --no-build-isolation \
    --no-deps --wheel-dir "$build/wheel" --config-settings build-dir="$build/cmake" "${options[@]}" 2>&1 |
    hbmprof_progress "$build/build.log" || { tail -n 30 "$build/build.log" >&2; return 1; }
  # Two names of the same platform: pip before 20.3 knows only manylinux2014.
  name=$(PYTHONPATH=$PWD/build/pypi python3 -m wheel tags --remove --platform-tag \
    "manylinux2014_$arch.manylinux_2_17_$arch" "$build"/wheel/*.whl)
  mv "$build/wheel/$name" "$package/out/"
  PYTHONPATH=$PWD/build/pypi python3 -m wheel unpack --dest "$build/wheel" "$package/out/$name" >/dev/null
  mkdir -p "$build/tree"
  mv "$build/wheel/hbmprof-$version/hbmprof-$version.data/data" "$build/tree/usr"
}

build_tar() {
  local name=hbmprof-$version-linux-$arch
  tar --create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --transform "s,^\./,$name/," --file "$package/out/$name.tar.gz" -C "$build/tree/usr" ./bin ./include ./lib ./share
}

build_deb() {
  local root=$build/deb
  rm -rf "$root"
  cp -a "$build/tree" "$root"
  mkdir -p "$root/DEBIAN"
  mv "$root/usr/share/doc/hbmprof/LICENSE" "$root/usr/share/doc/hbmprof/copyright"
  mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"  # as Debian's zsh finds it
  cat >"$root/DEBIAN/control" <<EOF
Package: hbmprof
Version: $version
Architecture: $deb_arch
Maintainer: The hbmprof authors <hbmprof@localhost>
Section: devel
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: libc6 (>= 2.17)
Conflicts: libhbmprof0.1, libhbmprof-dev, python3-hbmprof
Description: heap profiler for accelerator memory
 hbmprof records every live GPU or TPU buffer of a process with the call stack
 that allocated it, and writes profiles that pprof reads.
EOF
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group --build "$root" "$package/out/hbmprof_${version}_$deb_arch.deb" >/dev/null
}

packages=("${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PYPI_PACKAGES[@]}" dpkg-dev libbz2-dev liblzma-dev)
[[ $arch == x86_64 ]] || packages+=(g++-aarch64-linux-gnu qemu-user-static)
hbmprof_install "${packages[@]}"
hbmprof_pypi wheel wheel==0.45.1
hbmprof_pypi scikit_build_core scikit-build-core==1.1.2
mkdir -p "$package/out"
rm -f "$package/out/"*"$arch".* "$package/out/"*"$deb_arch".*
hbmprof_step "wheel for $arch" build_wheel
hbmprof_step "tar.gz" build_tar
hbmprof_step "deb" build_deb
(cd "$package/out" && sha256sum -- hbmprof* | tee SHA256SUMS)
