#!/usr/bin/env bash
# Makes the table of docs/preload.md that says how hbmprof works beside other libraries: runs the tests of them, each of
# which prints a row.
#
# usage: scripts/neighbours.sh [BUILD_DIR]      BUILD_DIR: a build folder (default build/dev)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev}
# The tests fail while the table has other rows.
rows=$("$build/tests/inject/neighbours_test" | grep '^| ' || true)
[[ -n $rows ]] || { echo "neighbours: $build/tests/inject/neighbours_test printed no rows" >&2; exit 1; }
python3 - docs/preload.md "$rows" <<'PYTHON'
import re
import sys

path, rows = sys.argv[1:]
with open(path, encoding="utf-8") as file:
  text = file.read()
text, count = re.subn(r"(\| other library \|.*\n\|-.*\n)(\|.*\n)*", lambda match: match.group(1) + rows + "\n", text)
assert count == 1, "no table"
with open(path, "w", encoding="utf-8") as file:
  file.write(text)
PYTHON
