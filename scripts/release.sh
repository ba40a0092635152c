#!/usr/bin/env bash
# Builds and checks all that a release publishes, from the last commit, and prints the hashes:
#   1. scripts/test.sh all
#   2. the packages for x86-64 and aarch64 (scripts/package.sh), into build/package/out
#   3. the same packages again in a clone in another folder; the hashes must be equal
#   4. scripts/package_test.sh for both
#   5. scripts/deploy_test.sh
#   6. scripts/source_test.sh
#
# usage: scripts/release.sh [--packages-only]      leaves out step 1: for a commit that has passed it already
#
# It ends at the first step that fails. It needs Debian 12 on x86-64, root (for chroot) and the network.
#
# Before it, set the version in include/hbmprof/version.h, and commit. After it, sign SHA256SUMS (for example with `gpg
# --detach-sign`), and publish the files with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
case "$*" in
  "") packages_only=0 ;;
  --packages-only) packages_only=1 ;;
  *) hbmprof_die "unknown arguments '$*': use no argument or --packages-only" ;;
esac
[[ $(id -u) == 0 ]] || hbmprof_die "scripts/release.sh needs root, for chroot"
[[ -z $(git status --porcelain) ]] ||
  hbmprof_die "the working tree has changes: commit them first (git status lists them)"
architectures=(x86_64 aarch64)

# build_packages: all packages, in the repository of the working directory, from nothing.
build_packages() {
  local arch
  rm -rf build/package/out
  for arch in "${architectures[@]}"; do
    rm -rf "build/package/$arch"
    scripts/package.sh --arch "$arch"
  done
}

# In a folder whose path has another length, so that a path that is stored anywhere changes the bytes. Without a compiler
# cache, which would make this build a copy of the first.
build_again() {
  export CCACHE_DISABLE=1
  local folder
  folder=$(mktemp -d)/hbmprof-again
  trap "rm -rf '${folder%/*}'" EXIT
  git clone --quiet --no-hardlinks . "$folder"
  (cd "$folder" && build_packages)
  diff build/package/out/SHA256SUMS "$folder/build/package/out/SHA256SUMS" ||
    hbmprof_die "the second build has other bytes; the lines above are the hashes of both"
}

[[ $packages_only == 1 ]] || hbmprof_step "tests" scripts/test.sh all
hbmprof_step "packages" build_packages
hbmprof_step "packages again, in another folder" build_again
hbmprof_step "packages for x86-64 in clean systems" scripts/package_test.sh
hbmprof_step "packages for aarch64 with qemu" scripts/package_test.sh --arch aarch64
hbmprof_step "recipes, image and pod" scripts/deploy_test.sh
hbmprof_step "Debian's packages and pip from source" scripts/source_test.sh
echo
cat build/package/out/SHA256SUMS
