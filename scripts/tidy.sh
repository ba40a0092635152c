#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the library, or over the files given. Exits 1 at any finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" clang clang-tidy
cmake --preset clang >/dev/null
if [[ $# == 0 ]]; then
  mapfile -d '' files < <(find src -name '*.cc' -print0)
  set -- "${files[@]}"
fi
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/clang --quiet
echo "tidy: $# files without a finding"
