#!/usr/bin/env bash
# Formats the C and C++ code with clang-format; with --check changes nothing, shows what is not formatted and exits 1.
# Exits 77 with a message if clang-format is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format >/dev/null; then
  echo "format: clang-format is not installed (apt-get install clang-format), so nothing was checked"
  exit 77
fi
mapfile -d '' files < <(find include src tests examples benchmarks -type f \
  \( -name '*.h' -o -name '*.c' -o -name '*.cc' -o -name '*.cu' \) -print0)
if [[ ${1:-} == --check ]]; then
  clang-format --dry-run --Werror "${files[@]}"
else
  clang-format -i "${files[@]}"
fi
