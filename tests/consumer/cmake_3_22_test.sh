#!/usr/bin/env bash
# Configures the repository with the oldest CMake that it supports, with a preset, so that all its parts are configured.
#
# usage: cmake_3_22_test.sh CMAKE SOURCE WORK      exits 77, which skips the test, without CMAKE
set -euo pipefail
cmake=$1 source=$2 work=$3
[[ -x $cmake ]] || { echo "there is no $cmake: scripts/test.sh installs it from PyPI"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
"$cmake" --version | head -n 1
[[ $("$cmake" --version) == "cmake version 3.22."* ]]
cd "$source"
"$cmake" --preset dev -B "$work" -Wdev -Werror=dev >"$work.log" 2>&1 || { cat "$work.log"; exit 1; }
