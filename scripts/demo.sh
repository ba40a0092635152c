#!/usr/bin/env bash
# Demonstrates how to find a leak of device memory: installs missing packages (Debian), builds, runs a server that leaks,
# and compares its profiles with pprof. Leaves before.pb.gz, after.pb.gz and diff.svg in build/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PPROF_PACKAGES[@]}"
hbmprof_step "building" hbmprof_build release llm_server tile_functions growing_list
# google/pprof; if it cannot be built, `go tool pprof`, which reads the same profiles.
if pprof=$(hbmprof_pprof); then
  pprof=("$pprof")
else
  pprof=(go tool pprof)
fi

demo=build/demo
rm -rf "$demo"
mkdir -p "$demo"

# show COMMAND...: prints the command as one would type it, then runs it.
show() {
  printf '\n$'
  printf ' %q' "${@#"$PWD/"}"
  echo
  "$@"
}

show build/release/examples/llm_server --leak --before "$demo/before.pb.gz" --after "$demo/after.pb.gz" \
  examples/llm_server/prompts.txt
diff=(-diff_base "$demo/before.pb.gz" "$demo/after.pb.gz")
show "${pprof[@]}" -top "${diff[@]}"
# The picture begins at the function that serves requests, and shows the tags that the server sets.
show "${pprof[@]}" -svg -show_from=Scheduler::Run -tagshow='phase|request_class' -output "$demo/diff.svg" "${diff[@]}"

# The first row below the table's head, to the byte.
culprit=$("${pprof[@]}" -top -unit=bytes "${diff[@]}" |
  awk 'head && !row { row = $0 } $1 == "flat" { head = 1 } END { print row }')
[[ -n $culprit ]] || hbmprof_die "the diff is empty: no leak was found"
echo
echo "the largest growth: $culprit"
echo "the picture: $PWD/$demo/diff.svg"
