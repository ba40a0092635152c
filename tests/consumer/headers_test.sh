#!/usr/bin/env bash
# Compiles the installed public headers as their users do.
#
# usage: headers_test.sh PREFIX WORK [LIBCXX]
# Without LIBCXX: compiles each C++ header alone and all together, in C++17 and C++20, with g++ and, if it is installed,
# clang++, and without exceptions and type information; the C headers with C compilers. With LIBCXX: compiles all with
# clang++ and the libc++ whose headers are in the folder LIBCXX. Exits 77, which skips the test, if these are missing.
set -euo pipefail
prefix=$1 work=$2 libcxx=${3-}
rm -rf "$work"
mkdir -p "$work"

# Not cuda.h, which needs a toolkit: another consumer test compiles it. Not leak_check.h, which needs GoogleTest and so
# exceptions.
headers=()
for header in "$prefix"/include/hbmprof/*.h; do
  header=${header##*/}
  [[ $header == cuda.h || $header == leak_check.h ]] || headers+=("$header")
done
c_headers=(c_api.h version.h)

# include HEADER...: prints lines that include them.
include() { printf '#include <hbmprof/%s>\n' "$@"; }
include "${headers[@]}" >"$work/all.cc"
include "${headers[@]}" leak_check.h >"$work/all_and_test.cc"
include "${c_headers[@]}" >"$work/all.c"
strict=(-fsyntax-only -Wall -Wextra -Werror -Wno-missing-field-initializers "-I$prefix/include")

if [[ -n $libcxx ]]; then
  command -v clang++ >/dev/null || { echo "there is no clang++"; exit 77; }
  [[ -e $libcxx/vector ]] || { echo "libc++'s headers are not in $libcxx"; exit 77; }
  for standard in 17 20; do
    echo "clang++, libc++, C++$standard"
    clang++ "${strict[@]}" -std=c++$standard -nostdinc++ -isystem "$libcxx" "$work/all.cc"
  done
  exit
fi

for header in "${headers[@]}" leak_check.h; do
  include "$header" >"$work/one.cc"
  echo "$header alone"
  g++ "${strict[@]}" -std=c++17 "$work/one.cc"
done
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || continue
  for standard in 17 20; do
    echo "$compiler, C++$standard"
    $compiler "${strict[@]}" -pedantic -std=c++$standard "$work/all_and_test.cc"
  done
  echo "$compiler, no exceptions, no type information"
  $compiler "${strict[@]}" -std=c++17 -fno-exceptions -fno-rtti "$work/all.cc"
done
for compiler in gcc clang; do
  command -v $compiler >/dev/null || continue
  for standard in c99 c17; do
    echo "$compiler, $standard"
    $compiler "${strict[@]}" -Wstrict-prototypes -pedantic -std=$standard "$work/all.c"
  done
done
