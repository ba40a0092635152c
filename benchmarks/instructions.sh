#!/usr/bin/env bash
# Counts the instructions per pair of an allocation and a free with valgrind's callgrind, and subtracts those of the
# same pair untracked. Other work on the machine does not change the result.
#
# usage: benchmarks/instructions.sh [BUILD [CASE...]]     BUILD: a build folder (default build/bench)
#        benchmarks/instructions.sh --check [BUILD]       fails if a case takes 3 % more than instructions.txt says
#        benchmarks/instructions.sh --accept [BUILD]      writes instructions.txt
#
# instructions.txt is of the preset dev and g++ 12, with which a test runs --check.
#
# The cases python3.11 and python3.12 are pairs under 20 Python functions in a process with 100 thread-specific keys, as
# one that imports PyTorch. They are left out if the machine has no shared library of that interpreter in /usr/lib or
# ~/.pyenv.
#
# Each count is the difference of two runs of different length, so that it does not contain the start of the program.
# Captures under valgrind are as complete as without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=print
default=build/bench
case ${1:-} in
  --check | --accept) mode=${1#--} default=build/dev; shift ;;
esac
build=${1:-$default}
shift || true
stored=benchmarks/instructions.txt
[[ $# -gt 0 ]] || set -- fp_repeating nofp_repeating nofp_random256 fp_random256 fp_repeating_block fp_chain_only \
  nofp_random10000 python3.11 python3.12
bench=$build/benchmarks/record_bench
for program in "$bench" "$build/benchmarks/python_bench"; do
  [[ -x $program ]] || { echo "error: no $program: cmake --preset bench && cmake --build --preset bench" >&2; exit 1; }
done
command -v valgrind >/dev/null || { echo "error: valgrind is missing (Debian: valgrind)" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

short=20000
long=60000

# library CASE: prints the path of the interpreter's shared library; nothing if there is none.
library() { compgen -G "/usr/lib/*/lib$1.so.1.0" || compgen -G "$HOME/.pyenv/versions/${1#python}.*/lib/lib$1.so.1.0"; }

# count CASE WORD PAIRS: prints the instructions of the whole run.
count() {
  local log=$folder/log command=("$bench" --benchmark_filter="^$1/$2/.*threads:1\$" --pairs="$3")
  [[ $1 != python* ]] || command=("$build/benchmarks/python_bench" "$(library "$1" | head -1)" "$2" "$3")
  if ! PYTHONHASHSEED=0 valgrind --tool=callgrind --callgrind-out-file=/dev/null "${command[@]}" >"$log" 2>&1; then
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

failed=0
accepted=()
echo "| case | untracked | added by tracking |"
echo "|---|---|---|"
for case in "$@"; do
  if [[ $case == python* && -z $(library "$case") ]]; then
    [[ $mode != accept ]] || { echo "error: no shared library for $case" >&2; exit 1; }
    echo "| $case | no shared library | |"
    continue
  fi
  untracked=$(slope "$case" untracked)
  added=$(($(slope "$case" tracked) - untracked))
  echo "| $case | $untracked | $added |"
  accepted+=("$case $added")
  [[ $mode == check ]] || continue
  expected=$(awk -v name="$case" '$1 == name {print $2}' $stored)
  if [[ -z $expected ]]; then
    echo "error: $stored has no line for $case" >&2
    failed=1
  elif ((added * 100 > expected * 103)); then
    echo "error: a pair of $case takes $added instructions; $stored says $expected, and at most 3 % more" >&2
    failed=1
  fi
done
if [[ $mode == accept ]]; then
  printf '%s\n' "${accepted[@]}" >$stored
elif ((failed != 0)); then
  echo "If the reason is worth its cost, accept the counts: benchmarks/instructions.sh --accept $build" >&2
fi
exit $failed
