#!/usr/bin/env bash
# Builds for aarch64 with a cross compiler, and runs tests under qemu. For Debian 12 on x86-64. Takes about 30 minutes.
#
# usage: scripts/arm64.sh [TARGET...]     test programs to build and run; default: those in the lists below
#
# The libraries to link come from Debian's packages for arm64. They are unpacked into build/arm64-sysroot, so no foreign
# packages are installed on this system. qemu also runs the programs that tests start. For this, the kernel must have
# binfmt_misc in user namespaces (Linux 6.7). Without it, the test programs that start programs are left out.
#
# qemu 7.2 differs from a real system. Therefore the tests in `left_out` do not run; each line has the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh

# Test programs that start no other programs, and those that do.
alone=(capture_test capture_cfi_test capture_stack_memory_test capture_unloading_test capture_no_malloc_test
  capture_checked_test scoped_caller_test profiler_test)
starting=(pjrt_wrap_test pjrt_plugin_test ends_test inject_test)
left_out=(
  UnloadingTest.LibraryAtReusedAddressHasItsOwnFrames               # qemu does not give a library an address again
  UnloadingTest.LibraryWithoutBuildIdAtReusedAddressHasItsOwnFrames  # the same
  UnloadingTest.LibraryAroundOldStackWordsHasItsOwnFrames            # the same
  UnloadingTest.UnidentifiedLibraryInForkedChildHasItsOwnFrames      # the same
  UnloadingTest.LibraryWithoutBuildIdInForkedChildHasItsOwnFrames    # the same
  ModulesTest.KeepUnloadedLibraryUntilItsAddressIsReused             # the same
  ModulesTest.ContainVdso               # qemu has no vDSO
  ModulesTest.AreTheSameInForkedChild   # in qemu, the paths in /proc/self/maps differ from those of the dynamic linker
  InjectTest.CrashIsUnchanged                    # qemu adds a message at a crash
  InjectTest.ProgramWithoutCudaWritesNoProfile   # runs a program of this system
  InjectTest.CallsReachDriverOnceWithoutHostMemory  # starts more than a thousand programs
  '*/CarriesTest.*/abseil_*_alone'               # abseil finds other function names, also without hbmprof
  '*/EveryEnd.*/*exec*'                          # replaces the process by a program of this system
  PjrtPlugin.ReplacesARealPlugin                 # the plugin of PyPI is for this system
  PathCacheTest.ThreadExitUnmapsItsPages  # qemu's own memory is included in /proc/self/statm
)

sysroot=$PWD/build/arm64-sysroot
qemu=(qemu-aarch64-static -L "$sysroot" -cpu max)  # max has pointer authentication

# Unpacks Debian's packages for arm64 with their dependencies into build/arm64-sysroot.
make_sysroot() {
  [[ ! -e $sysroot ]] || return 0
  local folder=$PWD/build/arm64-apt
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$sysroot.new"
  : >"$folder/status"
  local apt=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder" -o
    Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  apt-get "${apt[@]}" install -y --no-install-recommends --download-only libc6-dev libstdc++-12-dev libabsl-dev \
    libdeflate-dev zlib1g-dev libelf-dev libiberty-dev libprotozero-dev libprotobuf-dev libcli11-dev \
    nlohmann-json3-dev libre2-dev libdw-dev libgtest-dev libgmock-dev libcpp-httplib-dev >/dev/null
  local package link target
  for package in "$folder"/cache/archives/*.deb; do
    dpkg -x "$package" "$sysroot.new"
  done
  # Absolute links would lead to this system's files.
  (
    cd "$sysroot.new"
    find . -type l -lname '/*' | while read -r link; do
      target=.$(readlink "$link")
      [[ ! -e $target ]] || ln -sfn "$(realpath -s --relative-to="$(dirname "$link")" "$target")" "$link"
    done
  )
  rm -rf "$folder"
  mv "$sysroot.new" "$sysroot"
}

# run_tests PROGRAM...: runs all tests of the programs, and returns 1 if one failed.
run_tests() {
  local program filter failed=0
  filter=-$(IFS=:; echo "${left_out[*]}")
  for program in "$@"; do
    echo "-- $program"
    "${qemu[@]}" "$(find build/arm64/tests -name "$program" -type f)" --gtest_brief=1 --gtest_filter="$filter" || failed=1
  done
  return $failed
}

# in_namespace COMMAND...: runs COMMAND in a user namespace where the kernel starts aarch64 programs with qemu.
in_namespace() {
  QEMU_LD_PREFIX=$sysroot QEMU_CPU=max unshare --user --map-root-user --mount bash -c '
    set -euo pipefail
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    elf="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff"
    printf %s ":aarch64:M::$elf\x02\x00\xb7\x00:$mask\xfe\xff\xff\xff:$1:F" >/proc/sys/fs/binfmt_misc/register
    shift
    "$@"' bash "$(command -v qemu-aarch64-static)" "$@"
}

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_CLANG_PACKAGES[@]}" \
  g++-aarch64-linux-gnu qemu-user-static
hbmprof_step "unpacking the packages for arm64" make_sysroot
if [[ $# -gt 0 ]]; then
  alone=()
  starting=("$@")
fi
hbmprof_step "building" hbmprof_build arm64 "${alone[@]}" "${starting[@]}"
status=0
hbmprof_step "tests" run_tests "${alone[@]}" || status=1
if in_namespace true 2>/dev/null; then
  export -f run_tests
  hbmprof_step "tests that start programs" in_namespace bash -c "$(declare -p left_out qemu); run_tests ${starting[*]}" ||
    status=1
else
  echo "note: the kernel has no binfmt_misc in user namespaces, so these tests are left out: ${starting[*]}"
fi
exit $status
