#!/usr/bin/env bash
# Builds for aarch64 with a cross compiler, and runs tests under qemu. For Debian 12 on x86-64. Takes about 30 minutes.
#
# usage: scripts/arm64.sh [TARGET...]     test programs to build and run; default: those in the lists below
#
# The libraries to link come from Debian's packages for arm64. They are unpacked into build/arm64-sysroot, so no foreign
# packages are installed on this system. qemu also runs the programs that tests start. For this, the kernel must have
# binfmt_misc in user namespaces (Linux 6.7). Without it, the test programs that start programs are left out.
#
# The tests of `hbmprof attach` need ptrace. They run in an emulated system with Debian's kernel for arm64, also with
# NVIDIA's driver libraries for arm64.
#
# qemu 7.2 differs from a real system. Therefore the tests in `left_out` do not run; each line has the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
source scripts/lib/arm64.sh

# Test programs that start no other programs, and those that do.
alone=(capture_test capture_cfi_test capture_stack_memory_test capture_unloading_test capture_no_malloc_test
  scoped_caller_test profiler_test)
starting=(pjrt_wrap_test pjrt_plugin_test ends_test inject_test)
attaching=(tool_attach_test tool_attach_command_test)
# There is no Python and no PyTorch in the emulated system, and with 100 threads it is too slow to find one that still
# waits when its stack has been read.
not_attaching='*Python*:*Torch*:*100_threads'
left_out=(
  UnloadingTest.LibraryAtReusedAddressHasItsOwnFrames               # qemu does not give a library an address again
  UnloadingTest.LibraryWithoutBuildIdAtReusedAddressHasItsOwnFrames  # the same
  UnloadingTest.LibraryAroundOldStackWordsHasItsOwnFrames            # the same
  UnloadingTest.BuildIdThatCannotBeReadAnyMoreIsNotRead              # the same
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

hbmprof_step "installing what is missing" hbmprof_install "${HBMPROF_BUILD_PACKAGES[@]}" "${HBMPROF_CLANG_PACKAGES[@]}" \
  g++-aarch64-linux-gnu qemu-user-static qemu-system-arm cpio
hbmprof_step "unpacking the packages for arm64" hbmprof_arm64_unpack "$sysroot" "${HBMPROF_ARM64_PACKAGES[@]}"
kernel=$PWD/build/arm64-kernel
hbmprof_step "unpacking a kernel for arm64" hbmprof_arm64_unpack "$kernel" linux-image-cloud-arm64 busybox-static
hbmprof_step "NVIDIA's driver libraries for arm64" hbmprof_drivers --arm64 bullseye bookworm trixie
if [[ $# -gt 0 ]]; then
  alone=()
  starting=("$@")
  attaching=()
fi
hbmprof_step "building" hbmprof_build arm64 "${alone[@]}" "${starting[@]}" "${attaching[@]}"
status=0
for program in "${attaching[@]}"; do
  mapfile -t files < <(find "$PWD/build/arm64/src" "$PWD/build/arm64/tests" \( -type f -perm -100 -o -type l \) \
    \( -name '*.so*' -o -name 'attach_*' -o -name inject_attach -o -name inject_torch -o -name "$program" -o -name hbmprof \))
  [[ ! -e build/arm64-driver ]] || files+=("$PWD/build/arm64-driver")
  hbmprof_step "tests in an emulated system: $program" hbmprof_arm64_system "$sysroot" "$kernel" \
    "$(find "$PWD/build/arm64/tests" -name "$program" -type f) --gtest_brief=1 --gtest_filter=-$not_attaching" \
    "${files[@]}" || status=1
done
hbmprof_step "tests" run_tests "${alone[@]}" || status=1
if hbmprof_arm64_namespace "$sysroot" true 2>/dev/null; then
  export -f run_tests
  hbmprof_step "tests that start programs" hbmprof_arm64_namespace "$sysroot" \
    bash -c "$(declare -p left_out qemu); run_tests ${starting[*]}" || status=1
else
  echo "note: the kernel has no binfmt_misc in user namespaces, so these tests are left out: ${starting[*]}"
fi
exit $status
