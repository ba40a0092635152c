#!/usr/bin/env python3
"""Reads libc10.so, libc10_cuda.so and _memory_viz.py of PyTorch releases from PyPI's wheels, for the tests that run them.

usage: scripts/torch_libraries.py FOLDER RELEASE...

Writes these three files to FOLDER/RELEASE; does nothing for a release that is there. "newest" is the newest release
that pip finds. The wheels have 500 to 900 MB, the three files 2 MB: only those are read, by HTTP range requests. pip finds the wheels, so its configuration says where from. Exits 1 if a release could not be read; the last
line says why.

The libraries look for a CUDA runtime in FOLDER/../nvidia (their RPATH) before LD_LIBRARY_PATH: there must be none if a
double of the runtime is to be used.
"""
import io
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

FILES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/cuda/_memory_viz.py")
# The libraries have no Python in them: any CPython's wheel serves.
WHEEL = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")


def wheel_url(release):
    """Returns the URL of the release's wheel. Downloads nothing but the package's metadata."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    requirement = "torch" if release == "newest" else f"torch=={release}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
               "--only-binary=:all:", "--target", "nowhere", "--report", "-", *WHEEL, *platforms, requirement]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise OSError(f"pip finds no {requirement}: {(run.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(run.stdout)["install"][0]["download_info"]["url"]


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by range requests of at least CHUNK bytes."""

    CHUNK = 1 << 18

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


def read_release(folder, release):
    """Writes the release's files to `folder`, all or none."""
    with zipfile.ZipFile(io.BufferedReader(RemoteFile(wheel_url(release)))) as wheel:
        new = folder.with_name(folder.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for file in FILES:
            (new / pathlib.Path(file).name).write_bytes(wheel.read(file))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    failed = ""
    for release in arguments[1:]:
        folder = pathlib.Path(arguments[0]) / release
        if all((folder / pathlib.Path(file).name).exists() for file in FILES):
            continue
        try:
            read_release(folder, release)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, subprocess.TimeoutExpired) as error:
            failed = f"torch {release}: {error}"
            print(failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
