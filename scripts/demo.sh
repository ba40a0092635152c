#!/usr/bin/env bash
# Demonstrates how to find a leak of device memory: installs missing packages (Debian), builds the command and a server
# that leaks, and shows the leak in a report, with `hbmprof leaks` and with pprof. Leaves all files in build/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

# Set by the test of README.md, in whose folder build/release has everything.
if [[ -z ${DEMO_IS_BUILT-} ]]; then
  hbmprof_step "installing what is missing" \
    hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_PPROF_PACKAGES[@]}"
  hbmprof_step "building" hbmprof_build release llm_server hbmprof_tool
fi
# google/pprof; if it cannot be built, `go tool pprof`, which reads the same profiles.
pprof=build/pprof
hbmprof_pprof >/dev/null || pprof="go tool pprof"
PATH=$PWD/build/release/src/tool:$PATH
demo=build/demo
rm -rf "$demo"
mkdir -p "$demo"

# show COMMAND: prints the command line, then runs it.
show() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}

server="build/release/examples/llm_server --leak"
prompts=examples/llm_server/prompts.txt
diff="-diff_base $demo/before.pb.gz $demo/after.pb.gz"
show "$server --before $demo/before.pb.gz --after $demo/after.pb.gz $prompts"
show "$pprof -top $diff"
# The picture begins at the function that serves requests, and shows the tags that the server sets. It has no legend:
# each comment of the profiles is a line there, which is wider than a screen.
show "$pprof -dot -show_from=Scheduler::Run -tagshow='phase|request_class' $diff |
    sed '/^subgraph cluster_L/d' | dot -Tsvg -o $demo/diff.svg"
# Two requests sixteen times, of which one is cancelled. `leaks` needs twelve dumps, which may follow each other fast.
show "head -n 2 $prompts | $server --cancel-every 2 --dumps 16 --dump-dir $demo"
show "hbmprof report --per requests $demo/dump.*.pb.gz -o $demo/report.html"
# It exits with 1, because it finds a leak.
show "hbmprof leaks --per requests --rows 1 --frames 1 $demo/dump.*.pb.gz" || [[ $? == 1 ]]

hbmprof leaks --per requests --json "$demo"/dump.*.pb.gz > "$demo/leaks.json" || [[ $? == 1 ]]
python3 -c '
import json, sys
data = json.load(open(sys.argv[1]))
leaks = [finding for finding in data["findings"] if finding["code"] == "LEAK"]
if not leaks:
  sys.exit("error: no leak was found")
stack = [frame.split(" ")[0] for frame in leaks[0]["stack"]]
grew, each = leaks[0]["bytes"], leaks[0]["per_count"]
path = reversed(stack[:stack.index("main")] if "main" in stack else stack)
print()
print("What leaks  ", stack[0])
print(f"How much     {grew / 2**20:.2f} MiB in {grew / each:.0f} requests, {each / 2**10:.0f} KiB per request")
print("Call path   ", "\n             ".join(path))
' "$demo/leaks.json"
echo "Report       file://$PWD/$demo/report.html"
echo "pprof        file://$PWD/$demo/diff.svg"
