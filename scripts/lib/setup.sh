# Shell functions that the scripts share: installing packages on Debian, and building a preset. Source it with the
# repository as working directory, under `set -euo pipefail`.

# To configure and build every preset, and to run the tests.
HBMPROF_BUILD_PACKAGES=(
  g++ cmake ninja-build pkg-config python3
  libabsl-dev libdeflate-dev zlib1g-dev libelf-dev libiberty-dev libprotozero-dev libunwind-dev libunwind8
  libprotobuf-dev protobuf-compiler libcli11-dev nlohmann-json3-dev libre2-dev libdw-dev libboost-dev
  libgtest-dev libgmock-dev libbenchmark-dev libjemalloc2 libtcmalloc-minimal4 musl-tools abigail-tools
  libcpp-httplib-dev valgrind opencl-headers)
# Both pprof viewers, and Graphviz for their pictures.
HBMPROF_PPROF_PACKAGES=(golang-go golang-github-google-pprof-dev graphviz)
# Prometheus and promtool for the tests of metrics. On a system with systemd the package starts a server.
HBMPROF_METRICS_PACKAGES=(prometheus)
# An OpenCL device for the tests, and the loader.
HBMPROF_OPENCL_PACKAGES=(pocl-opencl-icd ocl-icd-libopencl1 ocl-icd-opencl-dev)
# Java, for Spark.
HBMPROF_SPARK_PACKAGES=(openjdk-17-jre-headless)
# pip, for packages that only PyPI has.
HBMPROF_PYPI_PACKAGES=(python3-pip)
# The second compiler, the formatter that a test runs, and the linker of the tests.
HBMPROF_CLANG_PACKAGES=(clang clang-format lld)
# The browser for the report's tests, and Node.js for Perfetto's trace processor.
HBMPROF_BROWSER_PACKAGES=(chromium nodejs)

# If ccache is installed, the scripts use it. Clones in different folders share its results: paths in the project do not
# count, only those relative to it. In debug information they are those of the clone that compiled a file first.
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

hbmprof_die() {
  echo "error: $*" >&2
  exit 1
}

# hbmprof_step TITLE COMMAND...: runs COMMAND in a subshell, where the first command that fails ends it. Prints the title
# before it and the duration after it. Returns its status. If the call is part of a condition (`hbmprof_step ... ||
# failed=1`), bash ignores `set -e`. Then COMMAND itself must return a status other than 0 if a part of it fails.
hbmprof_step() {
  local title=$1 start=$SECONDS status
  shift
  echo "==> $title"
  local -
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  if [[ $status == 0 ]]; then
    echo "<== $title: $((SECONDS - start)) s"
  else
    echo "<== $title: FAILED with status $status after $((SECONDS - start)) s" >&2
  fi
  return $status
}

# hbmprof_progress LOG: copies the input into the file LOG, and prints now and then how much of a build of Ninja is done.
hbmprof_progress() {
  local line start= last done total
  while IFS= read -r line; do
    printf '%s\n' "$line"
    [[ $line =~ ^\ *\[([1-9][0-9]*)/([0-9]+)\] ]] || continue
    : "${start:=$SECONDS}" "${last:=$SECONDS}"
    [[ $((SECONDS - last)) -ge 20 ]] || continue
    last=$SECONDS done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    echo "$done of $total, about $(((SECONDS - start) * (total - done) / done / 60 + 1)) min left" >&2
  done >"$1"
}

# hbmprof_missing PACKAGE...: prints the packages that are not installed, one in each line.
hbmprof_missing() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

# hbmprof_install PACKAGE...: installs missing packages with apt-get. If that is not possible, ends the script with a
# message that says what to do.
hbmprof_install() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "note: this is not a Debian system, so nothing is installed; the contents of these Debian packages are needed: $*"
    return
  fi
  local missing
  mapfile -t missing < <(hbmprof_missing "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0

  local root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || hbmprof_die "these packages are missing, and installing them needs root, but there" \
      "is no sudo here. As root, run: apt-get install ${missing[*]}"
    root=(sudo)
  fi
  echo "installing: ${missing[*]}"
  # Another apt may run, for example because a machine updates itself after its start. Then this one waits.
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  local log
  log=$(mktemp)
  # If the update fails, an outdated index may still be enough to fetch the packages.
  "${apt[@]}" update >"$log" 2>&1 || { echo "warning: apt-get update failed:" >&2; tail -n 5 "$log" >&2; }
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    hbmprof_die "apt-get could not install: ${missing[*]} (see the reason above)"
  fi
  rm -f "$log"
}

# hbmprof_debian_source PACKAGE FOLDER: unpacks Debian's source package into FOLDER/PACKAGE-VERSION, with Debian's
# patches. The system's own list of sources need not have source packages. Returns 1 if that fails.
hbmprof_debian_source() {
  local package=$1 folder=$2
  mkdir -p "$folder/lists/partial"
  echo 'deb-src http://deb.debian.org/debian bookworm main' >"$folder/sources.list"
  local apt=(-qq -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$folder/lists" -o APT::Sandbox::User=root "${foreign[@]}")
  apt-get "${apt[@]}" update && (cd "$folder" && apt-get "${apt[@]}" source "$package" >/dev/null)
}

# hbmprof_configure PRESET: configures build/PRESET. Returns a status other than 0 if that fails.
hbmprof_configure() {
  local preset=$1 log=build/$1/configure.log
  mkdir -p "build/$preset"
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    echo "error: configuring the preset $preset failed" >&2
    return 1
  fi
  # The project's own lines name the parts that are not built, with the reason.
  grep -E '^-- hbmprof' "$log" || true
}

# hbmprof_build PRESET [TARGET...]: configures build/PRESET, and builds the targets, or everything if none is given.
# Returns a status other than 0 if that fails.
hbmprof_build() {
  local preset=$1
  shift
  hbmprof_configure "$preset" && cmake --build --preset "$preset" ${1:+--target "$@"}
}

# hbmprof_pprof: builds google/pprof from Debian's source package, once, and prints its path.
hbmprof_pprof() {
  local pprof=$PWD/build/pprof
  if [[ ! -x $pprof ]]; then
    mkdir -p build
    GO111MODULE=off GOPATH=/usr/share/gocode GOFLAGS=-trimpath go build -o "$pprof" github.com/google/pprof >&2 ||
      return 1
  fi
  echo "$pprof"
}

# hbmprof_libcxx: unpacks libc++'s headers from Debian's package into build/libc++. Its installation would remove
# libunwind-dev. If that is not possible, prints a note; the test that needs them skips. Never fails.
hbmprof_libcxx() {
  [[ ! -e build/libc++ ]] || return 0
  rm -rf build/libc++.new
  mkdir -p build/libc++.new
  if (cd build/libc++.new && apt-get -qq download libc++-14-dev && dpkg -x libc++-14-dev_*.deb . && rm ./*.deb) \
      >build/libc++.log 2>&1; then
    mv build/libc++.new build/libc++
  else
    echo "note: no headers of libc++, so the test that needs them is skipped: $(tail -n 1 build/libc++.log)"
  fi
}

# hbmprof_drivers [--arm64] SUITE...: unless build/driver (build/arm64-driver) is there, unpacks NVIDIA's driver library
# and NVML from these suites of Debian into a folder VERSION of it. They answer without a device. They are not installed,
# and must not be committed. If that is not possible, prints a note; the tests that need them skip. Never fails.
hbmprof_drivers() {
  local target=build/driver foreign=()
  if [[ $1 == --arm64 ]]; then
    target=build/arm64-driver
    foreign=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status=/dev/null)
    shift
  fi
  [[ ! -e $target ]] || return 0
  local suite folder=$PWD/$target.new log=$target.log
  rm -rf "$folder"
  mkdir -p "$folder/lists/partial" "$folder/done"
  printf 'deb http://deb.debian.org/debian %s non-free\n' "$@" >"$folder/sources.list"
  local apt=(-qq -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$folder/lists" -o APT::Sandbox::User=root "${foreign[@]}")
  apt-get "${apt[@]}" update >"$log" 2>&1 || true
  for suite in "$@"; do
    if ! hbmprof_driver "$folder" "$suite" "${apt[@]}" >>"$log" 2>&1; then
      echo "note: no NVIDIA driver library of Debian's $suite, so its tests are skipped: $(tail -n 1 "$log")"
    fi
  done
  # Without any, the next call tries again.
  [[ -z $(ls "$folder/done") ]] || mv "$folder/done" "$target"
  rm -rf "$folder"
}

# hbmprof_driver FOLDER SUITE OPTION...: unpacks one suite's libraries into FOLDER/done/VERSION, with the options of apt.
hbmprof_driver() (
  cd "$1" && apt-get "${@:3}" download "libcuda1/$2" "libnvidia-ml1/$2" || return
  rm -rf files
  for package in ./*.deb; do
    dpkg -x "$package" files && rm "$package" || return
  done
  files=(files/usr/lib/*/nvidia/current)
  version=$(cd "${files[0]}" && echo libcuda.so.*.*)
  version=${version#libcuda.so.}
  mv "${files[0]}" "done/${version%%.*}"
)

# hbmprof_ubuntu_drivers PACKAGE/SUITE...: for x86-64: unpacks NVIDIA's driver library and NVML from these packages of
# Ubuntu into folders VERSION of build/driver, except those that are there. Debian's package ubuntu-keyring has the keys
# of Ubuntu's archive. What is said of hbmprof_drivers holds here too.
hbmprof_ubuntu_drivers() {
  local package folder=$PWD/build/ubuntu-driver.new log=build/ubuntu-driver.log suites=()
  for package in "$@"; do
    [[ -e build/driver/$(hbmprof_ubuntu_version "$package") ]] || suites+=("${package#*/}")
  done
  [[ ${#suites[@]} -gt 0 ]] || return 0
  rm -rf "$folder"
  mkdir -p "$folder/lists/partial" build/driver
  local apt=(-qq -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$folder/lists" -o APT::Sandbox::User=root)
  echo 'deb http://deb.debian.org/debian trixie main' >"$folder/sources.list"
  if ! (apt-get "${apt[@]}" update && cd "$folder" && apt-get "${apt[@]}" download ubuntu-keyring/trixie &&
      dpkg -x ubuntu-keyring_*.deb keys) >"$log" 2>&1; then
    echo "note: no keys of Ubuntu's archive, so the tests of its driver libraries are skipped: $(tail -n 1 "$log")"
    return 0
  fi
  local key=$folder/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg
  printf "deb [arch=amd64 signed-by=$key] http://archive.ubuntu.com/ubuntu %s restricted multiverse\n" "${suites[@]}" |
    sort -u >"$folder/sources.list"
  apt-get "${apt[@]}" update >>"$log" 2>&1 || true
  for package in "$@"; do
    if ! hbmprof_ubuntu_driver "$folder" "$package" "${apt[@]}" >>"$log" 2>&1; then
      echo "note: Ubuntu has no ${package}, so the tests of this driver library are skipped: $(tail -n 1 "$log")"
    fi
  done
  rm -rf "$folder"
}

# hbmprof_ubuntu_version PACKAGE: prints the number in its name.
hbmprof_ubuntu_version() {
  sed -E 's/[^0-9]*([0-9]+).*/\1/' <<<"$1"
}

# hbmprof_ubuntu_driver FOLDER PACKAGE/SUITE OPTION...: unpacks one package's libraries, with the options of apt.
hbmprof_ubuntu_driver() (
  version=$(hbmprof_ubuntu_version "$2")
  [[ ! -e build/driver/$version ]] || return 0
  target=$PWD/build/driver/$version
  cd "$1" && apt-get "${@:3}" download "$2" || return
  mkdir -p "files/$version"
  # The package has 300 MB of other libraries.
  dpkg --fsys-tarfile "${2%/*}"_*.deb | tar -x -C "files/$version" --strip-components=4 --wildcards \
    './usr/lib/*/libcuda.so*' './usr/lib/*/libnvidia-ml.so*' || return
  rm "${2%/*}"_*.deb
  mv "files/$version" "$target"
)

# hbmprof_pip ARGUMENT...: runs pip by the interpreter's own path. A version manager's wrapper of python3 can fail if two
# run at the same time. PIP_ROOT_USER_ACTION: no system folder is changed.
hbmprof_pip() {
  PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 "$(python3 -c 'import sys; print(sys.executable)')" -m pip "$@"
}

# hbmprof_pypi MODULE REQUIREMENT...: unless the folder build/pypi has MODULE already, installs the requirements there
# from PyPI, for this project only. If that is not possible, prints a note; the tests that need it skip. Never fails.
# Several calls may run at the same time.
hbmprof_pypi() {
  local module=$1 new=build/pypi.new/${1//\//_}
  shift
  [[ ! -e build/pypi/$module ]] || return 0
  rm -rf "$new"
  mkdir -p "$new" build/pypi
  # Into another folder first, so that build/pypi is always complete.
  if hbmprof_pip install --quiet --no-compile --target "$new" "$@" >"$new.log" 2>&1 </dev/null; then
    flock build/pypi cp -a "$new/." build/pypi/
  else
    echo "note: PyPI gave no $*, so the tests that need it are skipped: $(tail -n 1 "$new.log")"
  fi
  rm -rf "$new"
}

# hbmprof_opencl: unpacks Intel's OpenCL driver for processors and Khronos's loader (both into the folder lib) and PyOpenCL
# from PyPI into build/opencl. pip itself would leave out that folder. If that is not possible, prints a note; the tests
# that need them skip. Never fails.
hbmprof_opencl() {
  local folder=build/opencl log=build/opencl.log wheel
  [[ ! -e $folder ]] || return 0
  rm -rf "$folder.new"
  mkdir -p "$folder.new/lib"
  if hbmprof_pip download --quiet --only-binary :all: --dest "$folder.new" \
      intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0 pyopencl==2026.1.4 >"$log" 2>&1 </dev/null; then
    for wheel in "$folder.new"/*.whl; do
      python3 -m zipfile -e "$wheel" "$folder.new" && rm "$wheel"
    done
    mv "$folder.new"/*.data/data/lib/* "$folder.new/lib/" && mv "$folder.new" "$folder"
  else
    echo "note: PyPI gave no OpenCL driver, so its tests are skipped: $(tail -n 1 "$log")"
  fi
  rm -rf "$folder.new"
}

# hbmprof_hip: unpacks Debian's HIP library and what it needs into build/hip. If that is not possible, prints a note; the
# test that needs it skips. Never fails.
hbmprof_hip() {
  local new=$PWD/build/hip.new
  [[ ! -e build/hip ]] || return 0
  rm -rf "$new"
  mkdir -p "$new"
  if (cd "$new" && apt-get download --quiet libamdhip64-5 libhsa-runtime64-1 libamd-comgr2 libhsakmt1) >build/hip.log 2>&1; then
    for package in "$new"/*.deb; do dpkg-deb -x "$package" "$new" && rm "$package"; done
    mv "$new"/usr/lib/*-linux-gnu build/hip
  else
    echo "note: Debian gave no libamdhip64-5, so its test is skipped: $(tail -n 1 build/hip.log)"
  fi
  rm -rf "$new"
}

# hbmprof_frameworks: installs whole PyTorch, JAX, and torch_npu with its PyTorch, from PyPI into folders of
# build/frameworks, without the vendors' libraries, which tests/frameworks/make_doubles.py replaces. If that is not
# possible, prints a note. Never fails.
hbmprof_frameworks() {
  hbmprof_packages build/frameworks/torch "torch==2.15.0 torchvision==0.29.2 triton==3.9.0" \
    filelock typing-extensions setuptools sympy networkx jinja2 fsspec numpy pillow transformers==5.24.0 pytest==8.3.4
  hbmprof_packages build/frameworks/npu "torch==2.14.0 torch-npu==2.14.0" \
    filelock typing-extensions setuptools sympy networkx jinja2 fsspec numpy pyyaml
  hbmprof_packages build/frameworks/jax "jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2" jax==0.10.2
}

# hbmprof_more_frameworks: the same for an older PyTorch, TensorFlow, ONNX Runtime and numba, into build/frameworks-more.
hbmprof_more_frameworks() {
  hbmprof_packages build/frameworks-more/torch "torch==2.5.1 torchvision==0.20.1" \
    filelock typing-extensions 'setuptools<80' sympy==1.13.1 networkx jinja2 fsspec 'numpy<2.3' pillow
  hbmprof_packages build/frameworks-more/tensorflow tensorflow==2.21.0 tensorflow==2.21.0
  hbmprof_packages build/frameworks-more/onnxruntime onnxruntime-gpu==1.31.1 numpy onnx==1.23.2 flatbuffers packaging
  hbmprof_packages build/frameworks-more/numba numba-cuda==0.30.4 numba-cuda==0.30.4
}

# hbmprof_servers: the same for vLLM and SGLang, with the versions that pip selects, and for llama.cpp, into
# build/servers.
hbmprof_servers() {
  local server folder packages pip=(hbmprof_pip install --quiet --dry-run --only-binary :all: --target build/servers/none)
  hbmprof_packages build/servers/llama.cpp cyllama-cuda12==0.2.18 gguf==0.19.0
  for server in vllm==0.33.0 sglang==0.5.23; do
    folder=build/servers/${server%==*}
    [[ ! -e $folder/site-packages ]] || continue
    if packages=$("${pip[@]}" --report - "$server" 2>"$folder.log" | python3 scripts/lib/without_nvidia.py); then
      hbmprof_packages "$folder" "$packages" setuptools
    else
      echo "note: PyPI gave no $server, so it is skipped: $(tail -n 1 "$folder.log")"
    fi
  done
}

# hbmprof_packages FOLDER ALONE REQUIREMENT...: unless it is there, makes FOLDER/site-packages with the requirements and,
# without their dependencies, which are NVIDIA's libraries, with the packages ALONE.
hbmprof_packages() {
  local folder=$1/site-packages log=$1.log alone
  [[ ! -e $folder ]] || return 0
  read -ra alone <<<"$2"
  mkdir -p "$1"
  rm -rf "$folder.new"
  local pip=(hbmprof_pip install --quiet --no-compile --no-cache-dir --target "$folder.new")
  # --upgrade: pip would leave out the scripts of the packages ALONE where there is a folder bin already.
  if "${pip[@]}" "${@:3}" >"$log" 2>&1 </dev/null &&
      "${pip[@]}" --upgrade --no-deps "${alone[@]}" >>"$log" 2>&1 </dev/null; then
    mv "$folder.new" "$folder"
  else
    echo "note: PyPI gave no $2, so its programs are skipped: $(tail -n 1 "$log")"
    rm -rf "$folder.new"
  fi
}

# hbmprof_framework PACKAGE FOLDER RELEASE[+headers]...: reads the libraries of PyTorch or TensorFlow that the tests need
# from PyPI into FOLDER (scripts/framework_libraries.py). FOLDER must not be build/pypi: PyTorch's libraries would find
# CUDA's real runtime there before the tests' substitute. If a release cannot be read, prints a note, and the tests that
# need it skip. Never fails.
hbmprof_framework() {
  python3 scripts/framework_libraries.py "$@" ||
    echo "note: PyPI gave not all of $*, so the tests that need it are skipped"
}
