#!/usr/bin/env bash
# Looks for inputs on which hbmprof crashes, hangs or takes too much memory, with libFuzzer.
#
# usage: scripts/fuzz.sh [SECONDS [FUZZER]]     600 and profile_fuzz by default
#
# profile_fuzz: files for the command hbmprof, starting from tests/fuzz/corpus. cfi_fuzz: unwind tables, starting from
# tests/fuzz/cfi_corpus. What is found stays in build/fuzz/found (cfi_found); add what crashes to the corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_CLANG_PACKAGES[@]}"
cmake -G Ninja -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS="-O1 -fsanitize=fuzzer-no-link" -DHBMPROF_SANITIZER=address+undefined -DHBMPROF_FUZZER=ON \
  -DHBMPROF_BUILD_BENCHMARKS=OFF -DHBMPROF_BUILD_EXAMPLES=OFF >/dev/null
fuzzer=${2:-profile_fuzz}
kind=${fuzzer%fuzz}
kind=${kind#profile_}
hbmprof_step "building" cmake --build build/fuzz --target "$fuzzer"
mkdir -p "build/fuzz/${kind}found"
exec "build/fuzz/tests/fuzz/$fuzzer" -max_total_time="${1:-600}" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
  -print_final_stats=1 -artifact_prefix="build/fuzz/${kind}found/" "build/fuzz/${kind}found" "tests/fuzz/${kind}corpus"
