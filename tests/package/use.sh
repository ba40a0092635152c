#!/bin/bash
# Installs one package in this system, a chroot of scripts/package_test.sh or scripts/source_test.sh, uses it, and
# removes it.
#
# usage: use.sh wheel|deb|tar
#        use.sh build                        makes Debian's packages and the sdist from /srv/hbmprof
#        use.sh debian|sdist                 for these
#        use.sh tests FOLDER PROGRAM...      runs the test programs below FOLDER
set -euo pipefail
kind=$1
cd /root
export LD_LIBRARY_PATH=/files/cuda LC_ALL=C.UTF-8

# use COMMAND PYTHON: runs the example on the substitute of the driver, and reads its profile and its recording.
use() {
  local hbmprof=$1 python=$2 profile
  rm -rf profiles serve*.hbmrec
  "$hbmprof" --version
  "$hbmprof" doctor -- "$python" /files/serve.py
  "$hbmprof" run --output profiles -- "$python" /files/serve.py
  profile=$(ls profiles/*.pb.gz)
  # The program holds 8 MiB of weights and 100 pages of 64 KiB.
  "$hbmprof" top --exact --own "$profile" | tee top.txt
  grep -Eq '^ *14942208 B +100\.00% .* allocate ' top.txt
  "$hbmprof" explain "$profile" || [[ $? == 1 || $? == 2 ]]
  "$hbmprof" diff "$profile" "$profile"
  "$hbmprof" leaks "$profile" "$profile" "$profile"
  "$hbmprof" symbolize "$profile" -o named.pb.gz
  "$hbmprof" report -o report.html "$profile"
  grep -q allocate report.html
  "$hbmprof" run --record=serve.hbmrec --output profiles -- "$python" /files/serve.py
  "$hbmprof" timeline serve.hbmrec
  "$hbmprof" dump serve.hbmrec@peak -o peak.pb.gz
  "$hbmprof" top --exact --own peak.pb.gz | grep -Eq '^ *14942208 B +100\.00% .* allocate '
  # A program with musl runs without the library, and one line says why.
  if [[ -e /files/musl_program ]]; then
    [[ $("$hbmprof" run --output musl -- /files/musl_program 2>musl.txt || echo "exit $?") == $'done\nexit 5' ]]
    grep "^hbmprof: /files/musl_program runs without hbmprof: .*another C library than glibc .*ld-musl" musl.txt
    [[ $(wc -l <musl.txt) == 1 && ! -e musl ]]
    [[ $("$hbmprof" doctor -- /files/musl_program || echo "exit $?") == *"will not inject it: "*ld-musl*"exit 1" ]]
  fi
  echo "used $hbmprof"
}

# use_wheel: uses what pip has installed in the environment venv, and removes it.
use_wheel() {
  grep '^name: hbmprof$' venv/share/hbmprof/skills/hbmprof/SKILL.md
  use venv/bin/hbmprof venv/bin/python
  venv/bin/python - <<'EOF'
import importlib.metadata
import hbmprof
print(hbmprof.version(), hbmprof.library_dir(), hbmprof.include_dir())
assert (hbmprof.include_dir() / "hbmprof" / "c_api.h").exists()
plugins = {point.group: point.load() for point in importlib.metadata.distribution("hbmprof").entry_points
           if point.group != "pytest11"}
assert plugins["vllm.general_plugins"].__module__ == "hbmprof.vllm", plugins
assert plugins["sglang.srt.plugins"].__module__ == "hbmprof.sglang", plugins
EOF
  rm -rf profiles serve*.hbmrec
  PATH=$PWD/venv/bin:$PATH hbmprof run --output profiles -- venv/bin/python /files/leak_test.py
  venv/bin/pip uninstall -y hbmprof
  [[ ! -e venv/bin/hbmprof && ! -e venv/lib/hbmprof ]]
}

# install_packages PACKAGE...: with apt-get.
install_packages() {
  apt-get -qq -y install --no-install-recommends "$@" >apt.log 2>&1 || { tail -n 20 apt.log; return 1; }
}

case $kind in
  wheel)
    python3 -m venv venv
    venv/bin/pip install --no-index /files/*.whl
    use_wheel
    ;;
  build)
    unset LD_LIBRARY_PATH
    apt-get -qq update
    install_packages dpkg-dev lintian python3-venv
    [[ ! -e /ccache ]] || install_packages ccache
    cd /srv/hbmprof
    apt-get -qq -y build-dep --no-install-recommends ./ >/root/apt.log 2>&1 || { tail -n 20 /root/apt.log; exit 1; }
    python3 -m venv /srv/venv
    /srv/venv/bin/pip install --quiet build
    /srv/venv/bin/python -m build --sdist --outdir /srv/dist
    cmake -G Ninja -S tests/package/doubles -B /srv/doubles
    cmake --build /srv/doubles --target fake_cuda
    cp -rL /srv/doubles/fake_cudart/cuda /srv/cuda
    # As other distributions compile by default: with link-time optimisation.
    DEB_CXXFLAGS_APPEND="-flto=auto -ffat-lto-objects" DEB_LDFLAGS_APPEND=-flto=auto dpkg-buildpackage -us -uc
    lintian --allow-root --fail-on error ../hbmprof_*.changes
    ls -l ../*.deb ../dist
    ;;
  debian)
    apt-get -qq update
    install_packages /files/*.deb
    # The packages have no copies of the system's libraries.
    ldd /usr/bin/hbmprof | tee ldd.txt
    ldd /usr/lib/*/hbmprof/libhbmprof_gpu.so | tee -a ldd.txt
    for name in libprotobuf-lite libre2 libdw libabsl_ libelf libdeflate; do grep "$name" ldd.txt >/dev/null; done
    use hbmprof python3
    python3 -c 'import hbmprof; print(hbmprof.version(), hbmprof.library_dir())'
    install_packages cmake g++ ninja-build pkgconf
    [[ ! -e /ccache ]] || install_packages ccache
    for name in record link; do
      (cd /files/hbmprof && AUTOPKGTEST_TMP=$(mktemp -d) LD_LIBRARY_PATH='' debian/tests/$name)
    done
    apt-get -qq -y purge hbmprof python3-hbmprof libhbmprof-dev
    [[ ! -e /usr/bin/hbmprof && ! -e /usr/lib/python3/dist-packages/hbmprof ]]
    ;;
  sdist)
    # As docs/install.md says, after "From source".
    awk '/^## From source/ {on = 1} /^```$/ && inside {exit} inside {sub(/^\$ /, ""); print} on && /^```c/ {inside = 1}' \
      /files/hbmprof/docs/install.md >packages.sh
    cat packages.sh
    bash -euo pipefail packages.sh >apt.log 2>&1 || { tail -n 20 apt.log; exit 1; }
    [[ ! -e /ccache ]] || install_packages ccache
    install_packages python3-venv
    python3 -m venv venv
    LD_LIBRARY_PATH='' venv/bin/pip install /files/hbmprof-*.tar.gz
    use_wheel
    ;;
  deb)
    dpkg -i /files/*.deb
    use hbmprof python3
    dpkg -r hbmprof
    [[ ! -e /usr/bin/hbmprof && ! -e /usr/lib/hbmprof ]]
    ;;
  tar)
    # As the lines of docs/install.md for an image do, and as an init container copies the folder into a volume.
    mkdir -p /opt
    tar -xzf /files/*.tar.gz -C /opt
    folder=$(echo /opt/hbmprof-*)
    PATH=$folder/bin:$PATH use hbmprof python3
    cp -r "$folder" /volume
    rm -r "$folder"
    use /volume/bin/hbmprof python3
    ;;
  tests)
    folder=$2
    failed=0
    for name in "${@:3}"; do
      program=$(find "$folder" -name "$name" -type f)
      # The libraries of the package stand in the place of those of the build.
      cmp /opt/hbmprof/lib/hbmprof/libhbmprof_gpu.so "${folder%/tests}/src/inject/libhbmprof_gpu.so"
      echo "-- $name"
      "$program" --gtest_brief=1 || failed=1
    done
    exit $failed
    ;;
esac
