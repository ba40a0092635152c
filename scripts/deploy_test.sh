#!/usr/bin/env bash
# Tries what deploy/ has for package managers and for Kubernetes with their real tools, on x86-64.
#
# usage: scripts/deploy_test.sh [conan|conda|source|pod...]     default: all
#   conan  `conan create` builds the package of deploy/conan and the programs of tests/consumer/project with it
#   conda  rattler-build builds the package of deploy/conda from the tar.gz; it is installed in an environment and used
#   source the same for the package of deploy/conda/source, which is built from this repository with this machine's
#          compiler and libraries
#   pod    checks the manifests with the schema of Kubernetes; builds the image of deploy/kubernetes/Dockerfile with
#          buildah; runs the pod of deploy/kubernetes/injected.yaml with chroot (tests/package/pod_test.py)
#
# conda, source and pod need the packages of build/package/out (scripts/package.sh). pod needs root, and the Debian 12 that
# `scripts/package_test.sh bookworm` installs. The tools are installed from PyPI into build/package/tools, and buildah
# from Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
work=$PWD/build/package/deploy
tools=$PWD/build/package/tools
cmake=$PWD/build/package/x86_64/cmake
held=14942208 # bytes that examples/serve.py holds

install_tools() {
  [[ ! -e $tools/ready ]] || return 0
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check conan==2.34.0 py-rattler-build==0.73.0 \
    py-rattler==0.28.0 kubernetes-validate==1.37.0
  touch "$tools/ready"
}

# The tar.gz for x86-64, and a substitute for the driver.
need_packages() {
  tar=$(echo build/package/out/hbmprof-*-linux-x86_64.tar.gz)
  [[ -e $tar ]] || hbmprof_die "build/package/out has no tar.gz for x86-64: run scripts/package.sh first"
  cmake --build "$cmake" --target fake_cuda >"$work/fake_cuda.log" || { tail -n 30 "$work/fake_cuda.log"; return 1; }
}

try_conan() {
  export CONAN_HOME=$work/conan
  rm -rf "$CONAN_HOME"
  "$tools/bin/conan" profile detect
  "$tools/bin/conan" create deploy/conan --no-remote
}

# use_conda RECIPE: builds a conda package, installs it, and uses it.
use_conda() {
  local name work=$work/conda/$(basename "$(dirname "$1")")
  name=$(basename "$tar" -linux-x86_64.tar.gz)
  rm -rf "$work"
  mkdir -p "$work"
  HBMPROF_PACKAGES=$PWD/build/package/out HBMPROF_VERSION=${name#hbmprof-} RATTLER_CACHE_DIR=$work/cache \
    "$tools/bin/python" tests/package/conda_test.py build "$1" "$work/channel"
  RATTLER_CACHE_DIR=$work/cache "$tools/bin/python" tests/package/conda_test.py install "$work/channel" "$work/prefix"
  cd "$work"
  LD_LIBRARY_PATH=${cmake}/tests/support/fake_cudart/cuda prefix/bin/hbmprof run --output profiles -- \
    python3 "$OLDPWD/examples/serve.py"
  prefix/bin/hbmprof top --exact --own profiles/*.pb.gz | tee top.txt
  grep -Eq "^ *$held B +100\.00% .* allocate " top.txt
}

try_conda() {
  need_packages
  use_conda deploy/conda/recipe.yaml
}

try_source() {
  need_packages
  HBMPROF_LIBRARIES=system use_conda deploy/conda/source/recipe.yaml
}

# image NAME: makes build/package/deploy/pod/NAME/rootfs, the image's file system, and inspect.json.
image() {
  local container
  container=$("${buildah[@]}" from "localhost/$1")
  mkdir -p "$work/pod/$1"
  ln -s "$("${buildah[@]}" mount "$container")" "$work/pod/$1/rootfs"
  "${buildah[@]}" inspect --type image "localhost/$1" >"$work/pod/$1/inspect.json"
}

# Builds two images on a minimal Debian 12: that of hbmprof from the Dockerfile, and one with a server.
build_images() {
  local debian=build/package/roots/bookworm context=$work/pod/context container
  [[ -e $debian/ready ]] || hbmprof_die "no system for the images: run scripts/package_test.sh bookworm first"
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add --quiet "$container" "$debian" /
  "${buildah[@]}" commit --quiet --rm "$container" localhost/debian
  mkdir -p "$context"
  cp deploy/kubernetes/Dockerfile "$tar" "$cmake/tests/support/fake_cudart/cuda/libcuda.so.1" examples/serve.py \
    tests/package/server.py "$context"
  "${buildah[@]}" build --quiet --from localhost/debian --build-arg PACKAGE="$(basename "$tar" .tar.gz)" \
    --tag localhost/hbmprof "$context"
  "${buildah[@]}" build --quiet --tag localhost/inference --file - "$context" <<<'
    FROM localhost/debian
    COPY libcuda.so.1 /usr/lib/x86_64-linux-gnu/
    COPY serve.py server.py /opt/inference/
    CMD ["/opt/inference/server.py"]'
  image hbmprof
  image inference
}

try_pod() {
  [[ $(id -u) == 0 ]] || hbmprof_die "the pod needs root, for chroot"
  need_packages
  hbmprof_install buildah
  "$tools/bin/kubernetes-validate" --strict deploy/kubernetes/*.yaml
  rm -rf --one-file-system "$work/pod"
  mkdir -p "$work/pod/work"
  export BUILDAH_ISOLATION=chroot
  buildah=(buildah --root "$work/pod/storage" --runroot "$work/pod/run" --storage-driver overlay)
  trap '"${buildah[@]}" umount --all >/dev/null' EXIT
  build_images
  "$tools/bin/python" tests/package/pod_test.py deploy/kubernetes/injected.yaml "$work/pod/work" \
    registry.example.com/hbmprof:0.1.0="$work/pod/hbmprof" registry.example.com/inference:1="$work/pod/inference"
}

[[ $# -gt 0 ]] || set -- conan conda source pod
for what in "$@"; do
  [[ $what =~ ^(conan|conda|source|pod)$ ]] || hbmprof_die "unknown argument '$what': use conan, conda, source or pod"
done
hbmprof_install python3-venv "${HBMPROF_BUILD_PACKAGES[@]}"
mkdir -p "$work"
hbmprof_step "conan, rattler-build and kubernetes-validate from PyPI" install_tools
for what in "$@"; do
  hbmprof_step "$what" "try_$what"
done
