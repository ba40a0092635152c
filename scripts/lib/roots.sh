# Shell functions for clean systems in folders, which chroot uses. Source it after setup.sh. They need root.

# hbmprof_debootstrap SUITE SCRIPT ROOT OPTION...: installs a minimal system in the new folder ROOT, with this script and
# these options of debootstrap. Ends the script with a message if that fails.
hbmprof_debootstrap() {
  local suite=$1 script=$2 root=$3
  rm -rf --one-file-system "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase "${@:4}" "$suite" "$root" "" "$script" >"$root.log" 2>&1 ||
    hbmprof_die "debootstrap failed: $root.log"
}

# hbmprof_in_root ROOT COMMAND...: runs the command in ROOT, with this machine's /proc and /dev. Its mounts need a
# namespace of their own (unshare --mount).
hbmprof_in_root() {
  local root=$1 name
  shift
  for name in proc dev; do mount --rbind "/$name" "$root/$name"; done
  chroot "$root" "$@"
}
export -f hbmprof_in_root
