#!/usr/bin/env bash
# Builds and runs programs against the installed library with the flags that pkg-config prints, and no others.
#
# usage: pkg_config_test.sh PREFIX WORK PROJECT        PROJECT: the folder with main.c and main.cc
set -euo pipefail
prefix=$1 work=$2 project=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig

version=$(sed -nE 's/^#define HBMPROF_VERSION_(MAJOR|MINOR|PATCH) //p' "$prefix/include/hbmprof/version.h" | paste -sd.)
[[ $(pkg-config --modversion hbmprof) == "$version" ]]
read -ra shared <<<"$(pkg-config --cflags --libs hbmprof-simulated)"
read -ra static <<<"$(pkg-config --static --cflags --libs hbmprof-simulated)"
shared+=("-Wl,-rpath,$(pkg-config --variable=libdir hbmprof)")

gcc -std=c99 -O2 -Wall -Wextra -Werror "$project/main.c" -o c_shared "${shared[@]}"
g++ -std=c++17 "$project/main.cc" -o cxx_shared "${shared[@]}"
# A static program: glibc warns of dlopen in it.
g++ -std=c++17 -static "$project/main.cc" -o cxx_static "${static[@]}" 2>link.log || { cat link.log; exit 1; }
for program in c_shared cxx_shared cxx_static; do
  echo "$program"
  "./$program" "$program.pb.gz"
  test -s "$program.pb.gz"
done
# Each links the intended libraries.
[[ $(ldd c_shared) == *"libhbmprof.so"*"=> $prefix/lib/"* ]]
[[ $(readelf --dynamic cxx_static) != *NEEDED* ]]
