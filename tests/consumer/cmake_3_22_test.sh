#!/usr/bin/env bash
# Configures the repository with the oldest CMake that it supports: with a preset, so that all its parts are configured,
# and with only the tests, which need other parts. Only with a preset does a warning stop the build.
#
# usage: cmake_3_22_test.sh CMAKE SOURCE WORK      exits 77, which skips the test, without CMAKE
set -euo pipefail
cmake=$1 source=$2 work=$3
[[ -x $cmake ]] || { echo "there is no $cmake: scripts/test.sh installs it from PyPI"; exit 77; }
mkdir -p "$work"
"$cmake" --version | head -n 1
[[ $("$cmake" --version) == "cmake version 3.22."* ]]
cd "$source"
for options in "--preset dev" "-G Ninja -DHBMPROF_BUILD_TESTS=ON" \
    "-G Ninja -DHBMPROF_BUILD_TESTS=ON -DHBMPROF_BUILD_TOOL=OFF -DBUILD_SHARED_LIBS=ON"; do
  rm -rf "$work"
  read -ra options <<<"$options"
  "$cmake" -S . "${options[@]}" -B "$work" -Wdev -Werror=dev >"$work.log" 2>&1 ||
    { echo "cmake ${options[*]}"; cat "$work.log"; exit 1; }
  count=$(grep -c -e -Werror "$work/build.ninja" || true)
  [[ ${options[0]} == --preset && $count != 0 || ${options[0]} != --preset && $count == 0 ]] ||
    { echo "cmake ${options[*]}: $count files are compiled with -Werror"; exit 1; }
done
