#!/usr/bin/env bash
# Checks the functions of scripts/lib/setup.sh with commands that fail. Usage: setup_test.sh SETUP_SH
set -euo pipefail
setup=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0

# expect WHAT EXPECTED SCRIPT: runs the script and compares its standard output, without durations, and then its status
# with EXPECTED.
expect() {
  local output status=0
  output=$(bash -c "set -euo pipefail; source '$setup'; $3" 2>/dev/null) || status=$?
  output=$(sed 's/: [0-9]* s$/: N s/' <<<"$output")
  [[ "$output $status" != "$2" ]] || return 0
  printf 'FAILED: %s\nexpected: %s\nactual: %s\n' "$1" "$2" "$output $status"
  failed=1
}

expect "a step ends at the first command that fails" "==> title 1" \
  'f() { false; echo continues; }; hbmprof_step title f; echo continues'
expect "a step returns the status of its command" $'==> title\nstatus 3 0' \
  'hbmprof_step title bash -c "exit 3" || echo "status $?"'
expect "a script still ends at a command that fails after a step" $'==> title\n<== title: N s 1' \
  'hbmprof_step title true; false; echo continues'

mkdir bin
printf '#!/bin/sh\nexit 1\n' >bin/go
chmod +x bin/go
expect "pprof that cannot be built is an error" "fallback 0" \
  'PATH=$PWD/bin:$PATH; if pprof=$(hbmprof_pprof); then echo "$pprof"; else echo fallback; fi'

printf '#!/bin/sh\necho no network; exit 1\n' >bin/apt-get
chmod +x bin/apt-get
expect "Ubuntu's packages that cannot be had are a note" \
  "note: no keys of Ubuntu's archive, so the tests of its driver libraries are skipped: no network
continues 0" \
  'PATH=$PWD/bin:$PATH; hbmprof_ubuntu_drivers libnvidia-compute-580-server/resolute; echo continues'
expect "a driver library that is there is not read again" "continues 0" \
  'mkdir -p build/driver/580; hbmprof_ubuntu_drivers libnvidia-compute-580-server/resolute; echo continues'

[[ $failed == 0 ]] && echo "ok"
exit $failed
