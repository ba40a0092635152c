#!/usr/bin/env bash
# Measures the same pairs of malloc and free, each with its full stack, under hbmprof and under other exact trackers.
# Prints one table.
#
# usage: benchmarks/peers.sh [BUILD]        BUILD: a build folder (default build/bench)
#        benchmarks/peers.sh torch [BUILD]  measures only a block of PyTorch's caching allocator, on the substitute
#                                           driver: alone, with hbmprof's injected library, with PyTorch's own history
# environment: STACKS=256 LIVE=10000 SECONDS_EACH=0.5 ROUNDS=5
#
# Installs heaptrack, jemalloc and gperftools from Debian if they are missing. Also builds jemalloc and gperftools from
# Debian's source packages into build/peers, so that they walk the stack by frame pointers, which is their fastest way.
# gperftools is built without its check whether a frame can be read, which is a system call. RMM's adaptor comes from
# PyPI (scripts/test.sh installs it into build/pypi) and gets its memory from the host's malloc. What cannot be
# installed or built is left out, with the reason in its row.
#
# The time that a tracker adds is its time per pair minus the time per pair of the same allocator without it; both are
# medians of interleaved rounds. The ratio compares this with the time that hbmprof adds in code without frame pointers.
# One thread is measured in processor time, two threads in wall time over both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

# torch_blocks BUILD: prints the table of PyTorch's blocks.
torch_blocks() {
  local build torch=$PWD/build/torch/newest folder how round
  build=$(cd "$1" && pwd)
  local support=$build/tests/support library=$build/src/inject/libhbmprof_gpu.so
  [[ -e $torch/include && -e $library && -e build/pypi/nvidia/cu13/include ]] ||
    hbmprof_die "no PyTorch, no headers of CUDA or no $library: run scripts/test.sh, and build $1"
  folder=$(mktemp -d)
  local cudart
  cudart=$(find "$support" -name 'libcudart.so.13' -path '*torch_cudart*' | head -n 1)
  g++ -std=c++20 -O2 benchmarks/peer_torch.cc -o "$folder/bench" -isystem "$torch/include" \
    -isystem build/pypi/nvidia/cu13/include -Wl,--no-as-needed "$torch"/libc10_cuda.so "$torch"/libc10.so "$cudart" \
    "$support"/fake_cudart/cuda/libcuda.so.1 "$support"/fake_cudart/nvml/libnvidia-ml.so.1 \
    -Wl,-rpath,"$torch:$(dirname "$cudart"):$support/fake_cudart/cuda:$support/fake_cudart/nvml"
  for ((round = 0; round < ${ROUNDS:-5}; ++round)); do
    for how in alone hbmprof history stacks; do
      local -a command=("$folder/bench" "${SECONDS_EACH:-0.5}" "${how/hbmprof/alone}")
      [[ $how != hbmprof ]] || command=(env LD_PRELOAD="$library" HBMPROF_GPU_OUTPUT="$folder/profile" "${command[@]}")
      echo "$how $("${command[@]}")" >>"$folder/results"
    done
  done
  python3 - "$folder/results" <<'PYTHON'
import statistics
import sys

NAMES = {"alone": "alone", "hbmprof": "with hbmprof's injected library", "history": "with PyTorch's history, without stacks",
         "stacks": "with PyTorch's history, stacks by backtrace()"}
times = {}
with open(sys.argv[1], encoding="utf-8") as file:
  for line in file:
    how, time = line.split()
    times.setdefault(how, []).append(float(time))
print("| a block of PyTorch's allocator | ns per pair | x alone |\n|---|---|---|")
for how, name in NAMES.items():
  median = statistics.median(times[how])
  print(f"| {name} | {median:.0f} | {median / statistics.median(times['alone']):.2f} |")
PYTHON
  rm -rf "$folder"
}

if [[ ${1:-} == torch ]]; then
  torch_blocks "${2:-build/bench}"
  exit
fi
build=${1:-build/bench}
bench=$PWD/$build/benchmarks/peer_bench
tuned=$PWD/build/peers
stacks=${STACKS:-256} live=${LIVE:-10000} seconds=${SECONDS_EACH:-0.5} rounds=${ROUNDS:-5}
[[ $build != /* ]] || bench=$build/benchmarks/peer_bench
[[ -x $bench ]] || hbmprof_die "no $bench: cmake --preset bench && cmake --build --preset bench"
hbmprof_install heaptrack libjemalloc2 libgoogle-perftools4

# build_tuned PACKAGE LIBRARY COMMAND: unless LIBRARY is in build/peers, unpacks Debian's source package there and runs
# COMMAND in it, which must make LIBRARY. Prints a note if that fails.
build_tuned() {
  local package=$1 library=$2 source=$tuned/$1.new
  [[ ! -e $tuned/$library ]] || return 0
  rm -rf "$source"
  mkdir -p "$source"
  if (hbmprof_debian_source "$package" "$source" && cd "$source/$package"-*/ && bash -ec "$3" && \
      cp -L "$(find . -name "$library" | head -n 1)" "$tuned/") >"$tuned/$package.log" 2>&1; then
    rm -rf "$source"
  else
    echo "note: $library cannot be built: $(tail -n 1 "$tuned/$package.log")" >&2
  fi
}

hbmprof_install make dpkg-dev autoconf automake libtool
build_tuned google-perftools libtcmalloc.so.4 \
  "autoreconf -i && ./configure --enable-frame-pointers --disable-static CXXFLAGS=-O2 \
    CPPFLAGS=-DTCMALLOC_UNSAFE_GENERIC_FP_STACKTRACE=1 && make -j2 libtcmalloc.la"
build_tuned jemalloc libjemalloc.so.2 \
  "./configure --enable-prof --disable-prof-libgcc && grep -q 'define JEMALLOC_PROF_GCC' \
    include/jemalloc/internal/jemalloc_internal_defs.h && make -j2 build_lib_shared"

pypi=$PWD/build/pypi
rmm=$tuned/libpeer_rmm.so
if [[ -e $pypi/librmm && benchmarks/peer_rmm.cc -nt $rmm ]]; then
  mkdir -p "$tuned"
  g++ -std=c++20 -O3 -DNDEBUG -shared -fPIC benchmarks/peer_rmm.cc -o "$rmm" -isystem "$pypi/librmm/include/rapids" \
    -isystem "$pypi/librmm/include" -isystem "$pypi/rapids_logger/include" -isystem "$pypi/nvidia/cu13/include" \
    -Wl,--no-as-needed -L"$pypi/librmm/lib64" -lrmm -L"$pypi/rapids_logger/lib64" -lrapids_logger \
    "$pypi"/nvidia/cu13/lib/libcudart.so.* \
    -Wl,-rpath,"$pypi/librmm/lib64:$pypi/rapids_logger/lib64:$pypi/nvidia/cu13/lib" >"$tuned/rmm.log" 2>&1 ||
    echo "note: RMM's adaptor cannot be compiled: $(grep -m 1 error "$tuned/rmm.log")" >&2
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
libraries=/usr/lib/$(gcc -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)
jemalloc=$libraries/libjemalloc.so.2
tcmalloc=$libraries/libtcmalloc.so.4
heaptrack=/usr/lib/heaptrack/libheaptrack_preload.so
tuned_jemalloc=$tuned/libjemalloc.so.2
tuned_tcmalloc=$tuned/libtcmalloc.so.4
gperf="HEAPPROFILE=$folder/gperf HEAP_PROFILE_ALLOCATION_INTERVAL=0 HEAP_PROFILE_INUSE_INTERVAL=0"
jeprof=prof:true,prof_active:true,lg_prof_sample:0

# Each row: NAME | NAME of its baseline | how to run it: "own" for hbmprof, "fp" for code with frame pointers, and the
# environment and wrapper before the program.
rows=(
  "glibc malloc||"
  "glibc malloc, frame pointers||fp"
  "hbmprof|glibc malloc|own"
  "hbmprof, frame pointers|glibc malloc, frame pointers|own fp"
  "heaptrack, output to /dev/null|glibc malloc|env LD_PRELOAD=$heaptrack DUMP_HEAPTRACK_OUTPUT=/dev/null"
  "heaptrack -o|glibc malloc|heaptrack -o $folder/heaptrack"
  "jemalloc||env LD_PRELOAD=$jemalloc"
  "jemalloc, prof, every allocation|jemalloc|env LD_PRELOAD=$jemalloc MALLOC_CONF=$jeprof"
  "tuned jemalloc, frame pointers||fp env LD_PRELOAD=$tuned_jemalloc"
  "tuned jemalloc, prof by frame pointers|tuned jemalloc, frame pointers|fp env LD_PRELOAD=$tuned_jemalloc MALLOC_CONF=$jeprof,prof_thread_active_init:false"
  "tcmalloc||env LD_PRELOAD=$tcmalloc"
  "gperftools heap profiler|tcmalloc|env LD_PRELOAD=$tcmalloc $gperf"
  "gperftools heap profiler, libgcc|tcmalloc|env LD_PRELOAD=$tcmalloc TCMALLOC_STACKTRACE_METHOD=libgcc $gperf"
  "tuned tcmalloc, frame pointers||fp env LD_PRELOAD=$tuned_tcmalloc"
  "tuned gperftools, frame pointers|tuned tcmalloc, frame pointers|fp env LD_PRELOAD=$tuned_tcmalloc TCMALLOC_STACKTRACE_METHOD=generic_fp $gperf"
  "RMM, host memory||env PEER_LIBRARY=$rmm"
  "RMM tracking adaptor, no stacks|RMM, host memory|env PEER_LIBRARY=$rmm RMM_TRACKING=on"
  "RMM tracking adaptor, stacks|RMM, host memory|env PEER_LIBRARY=$rmm RMM_TRACKING=stacks"
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
    *"$tuned_jemalloc"*) [[ -e $tuned_jemalloc ]] || echo "not built" ;;
    *"$tuned_tcmalloc"*) [[ -e $tuned_tcmalloc ]] || echo "not built" ;;
    *"$rmm"*) [[ -e $rmm ]] || echo "not built" ;;
  esac
}

# measure HOW THREADS: prints two numbers, the wall nanoseconds and the processor nanoseconds per pair.
measure() {
  local how=$1 threads=$2 tracker=none program=$bench word
  while word=${how%% *} && [[ $word == own || $word == fp ]]; do
    [[ $word == own ]] && tracker=hbmprof || program=${bench}_fp
    how=${how#"$word"}
    how=${how# }
  done
  # Some trackers print into the program's output. The program's line is the only one that consists of two numbers.
  $how "$program" "$tracker" "$threads" "$stacks" "$live" "$seconds" 2>"$folder/error" |
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
  2>/dev/null)RMM $(cat "$pypi/librmm/VERSION" 2>/dev/null || echo none)"
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
