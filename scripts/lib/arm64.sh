# Shell functions for building for aarch64 on another Debian system, and for running the result with qemu. Source it
# after setup.sh.

# What the build needs from Debian's packages for arm64.
HBMPROF_ARM64_PACKAGES=(libc6-dev libstdc++-12-dev libabsl-dev libdeflate-dev zlib1g-dev libelf-dev libiberty-dev
  libprotozero-dev libprotobuf-dev libcli11-dev nlohmann-json3-dev libre2-dev libdw-dev libbz2-dev liblzma-dev
  libgtest-dev libgmock-dev libboost-dev libcpp-httplib-dev)

# hbmprof_arm64_unpack FOLDER PACKAGE...: unpacks Debian's packages for arm64, with their dependencies, into FOLDER,
# unless it has them already. FOLDER/packages has one line for each: its name and its version. The system itself gets no
# foreign packages.
hbmprof_arm64_unpack() {
  local folder=$1 apt_folder=$1.apt package link target
  shift
  [[ $(printf '%s\n' "$@" | sort) != "$(cat "$folder/requested" 2>/dev/null)" ]] || return 0
  rm -rf "$folder" "$folder.new" "$apt_folder"
  mkdir -p "$apt_folder/lists/partial" "$apt_folder/cache/archives/partial" "$folder.new"
  : >"$apt_folder/status"
  local apt=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt_folder" -o
    Dir::State::status="$apt_folder/status" -o Dir::Cache="$apt_folder/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  apt-get "${apt[@]}" install -y --no-install-recommends --download-only "$@" >/dev/null
  for package in "$apt_folder"/cache/archives/*.deb; do
    dpkg -x "$package" "$folder.new"
    dpkg-deb --show --showformat '${Package} ${Version}\n' "$package" >>"$folder.new/packages"
  done
  # Absolute links would lead to this system's files.
  (
    cd "$folder.new"
    find . -type l -lname '/*' | while read -r link; do
      target=.$(readlink "$link")
      [[ ! -e $target ]] || ln -sfn "$(realpath -s --relative-to="$(dirname "$link")" "$target")" "$link"
    done
  )
  rm -rf "$apt_folder"
  printf '%s\n' "$@" | sort >"$folder.new/requested"
  mv "$folder.new" "$folder"
}

# hbmprof_arm64_namespace FOLDER COMMAND...: runs it in a user namespace where the kernel starts aarch64 programs with
# qemu, which looks for their libraries in FOLDER first. The kernel must have binfmt_misc in user namespaces (Linux 6.7).
hbmprof_arm64_namespace() {
  QEMU_LD_PREFIX=$1 QEMU_CPU=max unshare --user --map-root-user --mount bash -c '
    set -euo pipefail
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    elf="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff"
    printf %s ":aarch64:M::$elf\x02\x00\xb7\x00:$mask\xfe\xff\xff\xff:$1:F" >/proc/sys/fs/binfmt_misc/register
    shift
    "$@"' bash "$(command -v qemu-aarch64-static)" "${@:2}"
}

# hbmprof_arm64_system SYSROOT KERNEL COMMAND FILE...: starts an emulated aarch64 system with the kernel and the busybox in
# the folder KERNEL, runs the shell command there as root, and returns 0 if it did. The files and folders have the same
# absolute paths there; the libraries that they need come from SYSROOT. Here ptrace works, unlike in qemu's user mode.
hbmprof_arm64_system() {
  local sysroot=$1 kernel=$2 command=$3 root status=0 file name
  shift 3
  root=$(mktemp -d)
  chmod 755 "$root"
  local libraries=$root/usr/lib/aarch64-linux-gnu
  mkdir -p "$root"/{bin,dev,etc,lib,proc,sys,tmp,usr/bin} "$libraries"
  ln -s ../usr/lib/aarch64-linux-gnu "$root/lib/aarch64-linux-gnu"
  cp -L "$sysroot/lib/ld-linux-aarch64.so.1" "$root/lib/"
  cp -L "$sysroot/lib/aarch64-linux-gnu/libm.so.6" "$libraries/"  # loaded by name
  cp "$kernel/bin/busybox" "$root/bin/"
  for name in cat echo kill ls mkdir mount sh sleep true unshare; do ln -s busybox "$root/bin/$name"; done
  ln -s ../../bin/busybox "$root/usr/bin/unshare"
  for file in "$@"; do
    mkdir -p "$root$(dirname "$file")"
    cp -a "$file" "$root$file"
  done
  # Until no library is missing. readelf fails for files that are no programs.
  local missing=1
  while [[ -n $missing ]]; do
    missing=$(for name in $({ find "$root" -type f -exec aarch64-linux-gnu-readelf -d {} + 2>/dev/null || true; } |
        sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u); do
      [[ -n $(find "$root" -name "$name" -print -quit) ]] || find "$sysroot"/{,usr/}lib -name "$name" -print -quit
    done)
    [[ -z $missing ]] || cp -L $missing "$libraries/"
  done
  cat >"$root/init" <<END
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
$command && echo "the command returned 0"
/bin/busybox poweroff -f
END
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$root.cpio.gz"
  timeout 20m qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -smp 2 -m 2G -nographic -nic none -no-reboot \
    -kernel "$kernel"/boot/vmlinuz-* -initrd "$root.cpio.gz" \
    -append "console=ttyAMA0 quiet panic=-1 rdinit=/init" </dev/null | tee "$root.log" || status=1
  grep -q "^the command returned 0" "$root.log" || status=1
  rm -rf "$root" "$root.cpio.gz" "$root.log"
  return $status
}
