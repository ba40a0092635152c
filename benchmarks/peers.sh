#!/usr/bin/env bash
# Measures the same pairs of malloc and free, each with its full stack, under hbmprof and under other exact trackers.
# Prints one table.
#
# usage: benchmarks/peers.sh [BUILD]      BUILD: a build folder (default build/release)
# environment: STACKS=256 LIVE=10000 SECONDS_EACH=0.5 ROUNDS=5
#
# Installs heaptrack, jemalloc and gperftools from Debian if they are missing. The time that a tracker adds is its time
# per pair minus the time per pair of the same allocator without it; both are medians of interleaved rounds. The ratio
# compares this with the time that hbmprof adds in code without frame pointers. One thread is measured in processor
# time, two threads in wall time over both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

build=${1:-build/release}
bench=$PWD/$build/benchmarks/peer_bench
stacks=${STACKS:-256} live=${LIVE:-10000} seconds=${SECONDS_EACH:-0.5} rounds=${ROUNDS:-5}
[[ $build != /* ]] || bench=$build/benchmarks/peer_bench
[[ -x $bench ]] || hbmprof_die "no $bench: cmake --preset release && cmake --build --preset release"
hbmprof_install heaptrack libjemalloc2 libgoogle-perftools4

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
libraries=/usr/lib/$(gcc -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)
jemalloc=$libraries/libjemalloc.so.2
tcmalloc=$libraries/libtcmalloc.so.4
heaptrack=/usr/lib/heaptrack/libheaptrack_preload.so

# Each row: NAME | NAME of its baseline | how to run it: environment and wrapper before the program, or "own" for
# hbmprof.
rows=(
  "glibc malloc||"
  "glibc malloc, frame pointers||fp"
  "hbmprof|glibc malloc|own"
  "hbmprof, frame pointers|glibc malloc, frame pointers|own fp"
  "heaptrack, output to /dev/null|glibc malloc|env LD_PRELOAD=$heaptrack DUMP_HEAPTRACK_OUTPUT=/dev/null"
  "heaptrack -o|glibc malloc|heaptrack -o $folder/heaptrack"
  "jemalloc||env LD_PRELOAD=$jemalloc"
  "jemalloc, prof, every allocation|jemalloc|env LD_PRELOAD=$jemalloc MALLOC_CONF=prof:true,prof_active:true,lg_prof_sample:0"
  "tcmalloc||env LD_PRELOAD=$tcmalloc"
  "gperftools heap profiler|tcmalloc|env LD_PRELOAD=$tcmalloc HEAPPROFILE=$folder/gperf HEAP_PROFILE_ALLOCATION_INTERVAL=0 HEAP_PROFILE_INUSE_INTERVAL=0"
  "gperftools heap profiler, libgcc|tcmalloc|env LD_PRELOAD=$tcmalloc TCMALLOC_STACKTRACE_METHOD=libgcc HEAPPROFILE=$folder/gperf HEAP_PROFILE_ALLOCATION_INTERVAL=0 HEAP_PROFILE_INUSE_INTERVAL=0"
)

# why_not HOW: prints the reason why this row cannot run, or nothing.
why_not() {
  case $1 in
    *"$heaptrack"*) [[ -e $heaptrack ]] || echo "no $heaptrack" ;;
    heaptrack*) command -v heaptrack >/dev/null || echo "no heaptrack command" ;;
    *"$jemalloc"*)
      if [[ ! -e $jemalloc ]]; then
        echo "no $jemalloc"
      elif [[ $1 == *prof:true* && $(MALLOC_CONF=stats_print:true LD_PRELOAD=$jemalloc /bin/true 2>&1) != \
          *"config.prof: true"* ]]; then
        echo "this jemalloc is built without profiling"
      fi ;;
    *"$tcmalloc"*) [[ -e $tcmalloc ]] || echo "no $tcmalloc" ;;
  esac
}

# measure HOW THREADS: prints two numbers, the wall nanoseconds and the processor nanoseconds per pair.
measure() {
  local how=$1 threads=$2 tracker=none chain=nofp
  [[ " $how " != *" own "* ]] || tracker=hbmprof
  [[ " $how " != *" fp "* ]] || chain=fp
  [[ $how == env* || $how == heaptrack* ]] || how=
  # Some trackers print into the program's output. The program's line is the only one that consists of two numbers.
  $how "$bench" "$tracker" "$chain" "$threads" "$stacks" "$live" "$seconds" 2>"$folder/error" |
    grep -E '^[0-9.]+ [0-9.]+$' || { cat "$folder/error" >&2; return 1; }
  rm -f "$folder"/heaptrack* "$folder"/gperf*
}

for ((round = 0; round < rounds; ++round)); do
  for row in "${rows[@]}"; do
    IFS='|' read -r name _ how <<<"$row"
    [[ -z $(why_not "$how") ]] || continue
    for threads in 1 2; do
      if result=$(measure "$how" "$threads"); then
        echo "$name|$threads|$result" >>"$folder/results"
      else
        echo "failed: $name, $threads threads" >&2
      fi
    done
  done
done

hbmprof_version=$(git describe --always --dirty 2>/dev/null || echo unknown)
echo "$(sed -n 's/^model name\s*: //p;T;q' /proc/cpuinfo), $(nproc) cores; load $(cut -d' ' -f1 /proc/loadavg);" \
  "hbmprof $hbmprof_version; $(dpkg-query -W -f '${Package} ${Version}; ' heaptrack libjemalloc2 libgoogle-perftools4 \
  2>/dev/null)"
echo "17 calls above the program's own, $stacks stacks, $live live, $rounds rounds of $seconds s"
if awk -v load="$(cut -d' ' -f1 /proc/loadavg)" -v cores="$(nproc)" 'BEGIN {exit !(load > 2 + cores / 2)}'; then
  echo "WARNING: the machine is busy with other work; the times are not reliable, in particular those with two threads"
fi
printf '%s\n' "${rows[@]}" | while IFS='|' read -r name base how; do
  echo "$name|$base|$(why_not "$how")"
done >"$folder/rows"
python3 - "$folder/rows" "$folder/results" <<'PYTHON'
import statistics
import sys

times = {}
with open(sys.argv[2], encoding="utf-8") as file:
  for line in file:
    name, threads, numbers = line.rstrip("\n").split("|")
    wall, processor = map(float, numbers.split())
    times.setdefault((name, int(threads)), []).append(processor if threads == "1" else wall)
median = {key: statistics.median(values) for key, values in times.items()}
ours = {t: median["hbmprof", t] - median["glibc malloc", t] for t in (1, 2)}

print("| tracker | 1 thread: ns per pair | added | x hbmprof | 2 threads: ns per pair | added | x hbmprof |")
print("|---|---|---|---|---|---|---|")
with open(sys.argv[1], encoding="utf-8") as file:
  for line in file:
    name, base, reason = line.rstrip("\n").split("|")
    cells = [name]
    for t in (1, 2):
      if (name, t) not in median:
        cells += [reason or "failed", "", ""]
      elif not base:
        cells += [f"{median[name, t]:.0f}", "", ""]
      else:
        added = median[name, t] - median.get((base, t), float("nan"))
        cells += [f"{median[name, t]:.0f}", f"{added:.0f}", f"{added / ours[t]:.1f}"]
    print("| " + " | ".join(cells) + " |")
PYTHON
