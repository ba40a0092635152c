#!/usr/bin/env python3
"""Reads libraries of PyTorch and TensorFlow releases from PyPI's wheels, for the tests that run them.

usage: scripts/framework_libraries.py PACKAGE FOLDER RELEASE[+headers]...

PACKAGE torch: writes libc10.so, libc10_cuda.so and _memory_viz.py to FOLDER/RELEASE, and with +headers the headers of
these libraries to FOLDER/RELEASE/include. PACKAGE tensorflow-cpu: writes libtensorflow_framework.so.2 to
FOLDER/RELEASE. Does not read files again that exist. "newest" is the newest release that pip finds. The wheels have 200
to 900 MB; only the parts with these files are read, by HTTP range requests: 4 MB for torch, 15 to 20 MB for
tensorflow-cpu. pip finds the wheels, so its configuration selects the package index. Exits 1 if a release could not be
read, and prints the reason.

PyTorch's libraries search for a CUDA runtime in FOLDER/../nvidia (their RPATH) before LD_LIBRARY_PATH. So that tests
can use their substitute for the runtime, there must be none in that folder.
"""
import io
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

FILES = {"torch": ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/cuda/_memory_viz.py"),
         "tensorflow-cpu": ("tensorflow/libtensorflow_framework.so.2",)}
HEADERS = ("torch/include/c10/", "torch/include/torch/headeronly/")
# The libraries have no Python in them: any CPython's wheel serves.
WHEEL = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")


def wheel_url(package, release):
    """Returns the URL of the release's wheel. Downloads nothing but the package's metadata."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    requirement = package if release == "newest" else f"{package}=={release}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
               "--only-binary=:all:", "--target", "nowhere", "--report", "-", *WHEEL, *platforms, requirement]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise OSError(f"pip finds no {requirement}: {(run.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(run.stdout)["install"][0]["download_info"]["url"]


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by range requests of CHUNK bytes."""

    CHUNK = 1 << 20

    def __init__(self, url):
        self.url = url
        self.position = 0
        self.chunks = {}
        with self.request("bytes=0-0") as reply:
            if reply.status != 206:
                raise OSError("the server answers no range requests")
            self.size = int(reply.headers["Content-Range"].rsplit("/", 1)[1])

    def request(self, wanted):
        return urllib.request.urlopen(urllib.request.Request(self.url, headers={"Range": wanted}), timeout=120)

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def readinto(self, buffer):
        number, start = divmod(self.position, self.CHUNK)
        if self.position >= self.size:
            return 0
        if number not in self.chunks:
            first = number * self.CHUNK
            with self.request(f"bytes={first}-{min(first + self.CHUNK, self.size) - 1}") as reply:
                self.chunks[number] = reply.read()
        part = self.chunks[number][start:start + len(buffer)]
        buffer[:len(part)] = part
        self.position += len(part)
        return len(part)


def files_of(package, wheel):
    """Yields the package's files: a path below the release's folder, and the contents."""
    for file in FILES[package]:
        yield pathlib.Path(file).name, wheel.read(file)


def headers_of(wheel):
    """Yields the headers in the same way: paths below `include`."""
    for name in wheel.namelist():
        if name.startswith(HEADERS) and not name.endswith("/"):
            yield name[len("torch/include/"):], wheel.read(name)


def write(folder, files):
    """Writes all files to `folder`; if one fails, none."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    for path, contents in files:
        (new / path).parent.mkdir(parents=True, exist_ok=True)
        (new / path).write_bytes(contents)
    new.rename(folder)


def read_release(package, folder, with_headers):
    """Writes the missing files of the release to `folder`."""
    include = folder / "include"
    is_complete = all((folder / pathlib.Path(file).name).exists() for file in FILES[package])
    if is_complete and (include.exists() or not with_headers):
        return
    with zipfile.ZipFile(io.BufferedReader(RemoteFile(wheel_url(package, folder.name)))) as wheel:
        if not is_complete:
            shutil.rmtree(folder, ignore_errors=True)
            write(folder, files_of(package, wheel))
        if with_headers and not include.exists():
            write(include, headers_of(wheel))


def main(arguments):
    if len(arguments) < 3 or arguments[0] not in FILES:
        sys.exit(__doc__)
    package, folder = arguments[0], pathlib.Path(arguments[1])
    failed = False
    for argument in arguments[2:]:
        release, _, extra = argument.partition("+")
        try:
            read_release(package, folder / release, extra == "headers")
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"{package} {release}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
