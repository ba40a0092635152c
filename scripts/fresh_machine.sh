#!/usr/bin/env bash
# Uses the project as on a new machine: makes a bare Debian 12 with debootstrap (minbase, git, ca-certificates), clones
# the last commit into it, and runs the commands of the pages there, as they are written.
#
# usage: scripts/fresh_machine.sh [--skip COMMAND]... [PAGE...]
#            PAGE: such as docs/install.md; by default all pages that need no other page
#            --skip: leaves out commands that begin with COMMAND, such as scripts/test.sh, which takes half an hour
#
# Each page has a machine of its own, in build/fresh_machine, which stays there if the page has a problem. The steps are
# the page's blocks of commands, except those with `no-test` (tests/docs/docs_test.py), and the files that it shows.
# apt-get gets the answer "yes". Prints the time of each command. The first command that fails ends the page. Output
# that differs from the page's is a problem, too. Exits with 1 if a page has a problem. Needs root and the network.
#
# The machine has no CUDA toolkit. If this one has /usr/local/cuda, pages that say that a toolkit is needed get it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
source scripts/lib/roots.sh

skip=()
while [[ ${1-} == --skip ]]; do
  [[ $# -ge 2 ]] || hbmprof_die "--skip needs the beginning of a command"
  skip+=(--skip "$2")
  shift 2
done
pages=("$@")
[[ $# -gt 0 ]] || pages=(README.md docs/{install,python,cuda_cpp,kubernetes,cuda}.md)
for page in "${pages[@]}"; do
  [[ -e $page ]] || hbmprof_die "there is no page '$page'"
done
[[ $(id -u) == 0 ]] || hbmprof_die "scripts/fresh_machine.sh needs root, for chroot"
hbmprof_install debootstrap git
machines=$PWD/build/fresh_machine
bare=$machines/bare
clone=/srv/hbmprof  # as in the pages
mkdir -p "$machines"
[[ -z $(git status --porcelain) ]] || echo "note: the clone has the last commit; changes after it are not tested"

make_machine() {
  [[ ! -e $bare/ready ]] || return 0
  hbmprof_debootstrap bookworm sid "$bare" --include=git,ca-certificates
  hbmprof_copy_network "$bare"
  printf 'APT::Get::Assume-Yes "true";\nDPkg::Options { "--force-confdef"; };\n' >"$bare/etc/apt/apt.conf.d/yes"
  rm -rf "$bare"/var/lib/apt/lists/*  # as in the image debian:12: a page that installs says `apt-get update` first
  touch "$bare/ready"
}

# use PAGE: runs its commands on a machine of its own.
use() {
  local root=$machines/${1//\//_} status=0 name
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$bare" "$root"
  git clone --quiet --no-hardlinks "$PWD" "$root$clone"
  local environment=(HOME=/root TERM=dumb LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST; do
    [[ -z ${!name-} ]] || environment+=("$name=${!name}")
  done
  local mounts=:
  if [[ -e /usr/local/cuda ]] && grep -q "^You need a CUDA toolkit" "$1"; then
    mkdir "$root/usr/local/cuda"
    mounts='mount -o bind,ro /usr/local/cuda "$1/usr/local/cuda"'
  fi
  unshare --mount python3 tests/docs/docs_test.py --machine "$1" "$root.log" "${skip[@]}" -- \
    bash -c "$mounts && "'hbmprof_in_root "$@"' bash "$root" env -i "${environment[@]}" env -C "$clone" || status=1
  [[ $status != 0 ]] || rm -rf --one-file-system "$root"
  return $status
}

hbmprof_step "a bare Debian 12" make_machine
failed=0
results=()
for page in "${pages[@]}"; do
  start=$SECONDS
  result=passed
  hbmprof_step "$page" use "$page" || { result="FAILED ($machines/${page//\//_}.log)"; failed=1; }
  results+=("$page: $result, $((SECONDS - start)) s")
done
printf '%s\n' "" "After $SECONDS s:" "${results[@]}"
exit $failed
