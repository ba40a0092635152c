#!/usr/bin/env bash
# Counts the instructions per pair of an allocation and a free with valgrind's callgrind, and subtracts those of the
# same pair untracked. Other work on the machine does not change the result.
#
# usage: benchmarks/instructions.sh [BUILD [CASE...]]     BUILD: a build folder (default build/release)
#
# Each count is the difference of two runs of different length, so that it does not contain the start of the program.
# Captures under valgrind are as complete as without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:-build/release}
shift || true
[[ $# -gt 0 ]] || set -- fp_repeating nofp_repeating nofp_random256 fp_random256
bench=$build/benchmarks/record_bench
[[ -x $bench ]] || { echo "error: no $bench: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
command -v valgrind >/dev/null || { echo "error: valgrind is missing (Debian: valgrind)" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

short=20000
long=60000

# count CASE WORD PAIRS: prints the instructions of the whole run.
count() {
  local log=$folder/log
  if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bench" \
      --benchmark_filter="^$1/$2/.*threads:1\$" --pairs="$3" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
  awk '/Collected :/ {print $NF}' "$log"
}

# slope CASE WORD: prints the instructions per pair.
slope() {
  local few many
  few=$(count "$1" "$2" $short)
  many=$(count "$1" "$2" $long)
  echo $(((many - few) / (long - short)))
}

echo "| case | untracked | added by tracking |"
echo "|---|---|---|"
for case in "$@"; do
  untracked=$(slope "$case" untracked)
  tracked=$(slope "$case" tracked)
  echo "| $case | $untracked | $((tracked - untracked)) |"
done
