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

# hbmprof_copy_network ROOT: lets ROOT reach the network as this machine does: with its proxies and certificates.
hbmprof_copy_network() {
  local root=$1
  apt-config dump | grep -iE '^Acquire::(https?|Retries|Check)' >"$root/etc/apt/apt.conf.d/network" || true
  cp -L /etc/resolv.conf "$root/etc/"
  [[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/"
  if compgen -G "/usr/local/share/ca-certificates/*" >/dev/null; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    [[ ! -x $root/usr/sbin/update-ca-certificates ]] || chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
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
