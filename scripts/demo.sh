#!/usr/bin/env bash
# Shows a leak of device memory, found: installs what is missing (Debian), builds, serves prompts with a server that
# leaks, and asks the real pprof what grew. Leaves before.pb.gz, after.pb.gz and diff.svg in build/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PPROF_PACKAGES[@]}"
hbmprof_step "building" hbmprof_build release llm_server tile_functions growing_list
# google/pprof; where it cannot be built, the one that comes with Go reads the same profiles.
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
# The picture begins where requests are served, and shows the tags that the server sets itself.
show "${pprof[@]}" -svg -show_from=Scheduler::Run -tagshow='phase|request_class' -output "$demo/diff.svg" "${diff[@]}"

# The first row below the table's head, to the byte.
culprit=$("${pprof[@]}" -top -unit=bytes "${diff[@]}" |
  awk 'head && !row { row = $0 } $1 == "flat" { head = 1 } END { print row }')
[[ -n $culprit ]] || hbmprof_die "the diff is empty: no leak was found"
echo
echo "the culprit: $culprit"
echo "the picture: $PWD/$demo/diff.svg"
