#!/usr/bin/env python3
"""Lists the libraries of this Debian system that the packages of scripts/package.sh contain, linked statically.

usage: contents.py notices FILE...   prints the licences of these libraries, and the files
       contents.py sbom VERSION      prints the list of them as CycloneDX JSON; VERSION is hbmprof's
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys

# The Debian packages that have the static libraries or the headers.
PACKAGES = [
    "libabsl-dev", "libdeflate-dev", "libelf-dev", "libdw-dev", "libiberty-dev", "zlib1g-dev", "libbz2-dev", "liblzma-dev",
    "libprotobuf-dev", "libre2-dev", "libcli11-dev", "nlohmann-json3-dev", "libprotozero-dev", "libstdc++-12-dev", "libgcc-12-dev",
    "libc6-dev"]
# This library is contained as a source file, from Debian's source package (source package, binary package).
HTTPLIB = ("cpp-httplib", "libcpp-httplib-dev")


def version_of(package):
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, capture_output=True, text=True).stdout


def notices(files):
    for package in PACKAGES:
        print(f"==== {package} {version_of(package)}\n")
        print(pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace"))
    for name in files:
        print(f"==== {HTTPLIB[0]} {version_of(HTTPLIB[1])}\n")
        print(pathlib.Path(name).read_text())


def sbom(version):
    def component(name, number):
        return {"type": "library", "name": name, "version": number, "purl": f"pkg:deb/debian/{name}@{number}?arch=amd64"}

    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    print(json.dumps({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "name": "hbmprof", "version": version},
        },
        "components": [component(name, version_of(name)) for name in PACKAGES] + [component(HTTPLIB[0], version_of(HTTPLIB[1]))],
    }, indent=1))


def main():
    if len(sys.argv) >= 2 and sys.argv[1] == "notices":
        notices(sys.argv[2:])
    elif len(sys.argv) == 3 and sys.argv[1] == "sbom":
        sbom(sys.argv[2])
    else:
        sys.exit(__doc__)


main()
