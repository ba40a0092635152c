#!/usr/bin/env python3
"""Lists the libraries of a Debian system that the packages of scripts/package.sh contain, linked statically.

usage: contents.py notices ROOT VERSION   prints the licences of these libraries, with the texts of those of Debian's
                                          common licences that they name
       contents.py sbom ROOT VERSION      prints the list of them as CycloneDX JSON; VERSION is hbmprof's

ROOT is / for this system, or the folder of an aarch64 system that scripts/lib/arm64.sh made.
"""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

# The Debian packages that have the static libraries or the headers.
PACKAGES = [
    "libabsl-dev", "libdeflate-dev", "libelf-dev", "libdw-dev", "libiberty-dev", "zlib1g-dev", "libbz2-dev", "liblzma-dev",
    "libprotobuf-dev", "libre2-dev", "libcli11-dev", "nlohmann-json3-dev", "libprotozero-dev", "libboost1.74-dev",
    "libstdc++-12-dev", "libgcc-12-dev", "libc6-dev"]
# Packages of this system that belong to the cross compiler.
COMPILERS = {"libstdc++-12-dev", "libgcc-12-dev"}


class System:
    """This system, or an aarch64 system in a folder."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.is_this = root == "/"
        self.architecture = "amd64" if self.is_this else "arm64"

    def packages(self):
        """The names of the packages whose libraries are contained."""
        return [name if self.is_this or name not in COMPILERS else name + "-arm64-cross" for name in PACKAGES]

    def version_of(self, package):
        if self.is_this or package.endswith("-cross"):
            return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, capture_output=True, text=True).stdout
        return dict(line.split() for line in (self.root / "packages").read_text().splitlines())[package]

    def licence_of(self, package):
        root = pathlib.Path("/") if package.endswith("-cross") else self.root
        return (root / "usr/share/doc" / package / "copyright").read_text(errors="replace")


def notices(system):
    named = set()
    for package in system.packages():
        licence = system.licence_of(package)
        named.update(re.findall(r"/usr/share/common-licenses/([A-Za-z]+-[0-9.]*[0-9])", licence))
        print(f"==== {package} {system.version_of(package)}\n")
        print(licence)
    for name in sorted(named):
        print(f"==== /usr/share/common-licenses/{name}\n")
        print(pathlib.Path("/usr/share/common-licenses", name).read_text())


def sbom(system, version):
    def component(name, number):
        return {"type": "library", "name": name, "version": number,
                "purl": f"pkg:deb/debian/{name}@{number}?arch={system.architecture}"}

    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), datetime.timezone.utc)
    print(json.dumps({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "name": "hbmprof", "version": version},
        },
        "components": [component(name, system.version_of(name)) for name in system.packages()],
    }, indent=1))


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "notices":
        notices(System(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "sbom":
        sbom(System(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(__doc__)


main()
