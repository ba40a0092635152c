#!/usr/bin/env bash
# Compiles each installed adapter alone, as a user does, if the headers of its library are there.
#
# usage: headers_test.sh PREFIX HEADER FOLDER...
# PREFIX: where hbmprof is installed. HEADER: the adapter, such as cub.h. FOLDER: folders of the library's headers.
# Exits 77, which skips the test, where the first folder does not exist.
set -euo pipefail
prefix=$1 header=$2
shift 2
[[ -d ${1-} ]] || { echo "skipped: no headers of the library that $header is for (${1:-no folder is known})"; exit 77; }
folders=()
for folder in "$@"; do folders+=(-isystem "$folder"); done

code="#include <hbmprof/adapters/$header>"
for how in "g++ -std=c++17" "clang++ -std=c++20"; do
  command -v ${how%% *} >/dev/null || { echo "no ${how%% *}: $header is not compiled with it"; continue; }
  echo "$header, $how"
  $how -fsyntax-only -Wall -Wextra -Werror -Wno-missing-field-initializers -x c++ \
    -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE "-I$prefix/include" "${folders[@]}" - <<<"$code"
done
