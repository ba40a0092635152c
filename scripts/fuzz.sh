#!/usr/bin/env bash
# Searches with libFuzzer for inputs on which the code crashes, hangs or takes too much memory.
#
# usage: scripts/fuzz.sh [SECONDS] [FUZZER...]     600 s for each of: profile cfi elf recording torch http report_page
#
#   profile      the command hbmprof on arbitrary profiles
#   cfi          the reader of unwind tables on arbitrary tables
#   elf          the readers of ELF and DWARF on arbitrary files
#   recording    the reader of recordings on arbitrary files
#   torch        the reader of snapshots of PyTorch on arbitrary pickles
#   http         the server of `hbmprof serve` on arbitrary requests
#   report_page  the report's page in Chromium, made of profiles with hostile strings (not libFuzzer)
#
# Starts from tests/fuzz/*corpus. The inputs that it finds stay in build/fuzz/found; add inputs that crash to the corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_CLANG_PACKAGES[@]}"
cmake -G Ninja -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS="-O1 -fsanitize=fuzzer-no-link" -DHBMPROF_SANITIZER=address+undefined -DHBMPROF_FUZZER=ON \
  -DHBMPROF_BUILD_TESTS=ON >/dev/null
seconds=${1:-600}
fuzzers=("${@:2}")
[[ ${#fuzzers[@]} -gt 0 ]] || fuzzers=(profile cfi elf recording torch http report_page)
for fuzzer in "${fuzzers[@]}"; do
  hbmprof_step "building $fuzzer" cmake --build build/fuzz --target "${fuzzer}_fuzz"
  if [[ $fuzzer == report_page ]]; then
    build/fuzz/tests/fuzz/report_page_fuzz "$seconds"
    continue
  fi
  corpus=tests/fuzz/corpus
  [[ $fuzzer == profile ]] || corpus=tests/fuzz/${fuzzer}_corpus
  mkdir -p "build/fuzz/found/$fuzzer"
  "build/fuzz/tests/fuzz/${fuzzer}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 "-artifact_prefix=build/fuzz/found/$fuzzer/" "build/fuzz/found/$fuzzer" "$corpus"
done
