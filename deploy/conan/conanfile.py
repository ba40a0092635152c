"""The Conan 2 recipe: the C++ libraries and the libraries for unchanged programs, built from this repository.

    conan create deploy/conan

The libraries that hbmprof uses come from the system, because a program and the hbmprof in it must have the same abseil.
On Debian and Ubuntu, `-c tools.system.package_manager:mode=install` lets Conan install what is missing.
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy
from conan.tools.system.package_manager import Apt

REPOSITORY = os.path.join("..", "..")
SOURCES = ["CMakeLists.txt", "LICENSE", "README.md", "cmake/*", "deploy/grafana/*", "deploy/prometheus/*", "include/*",
           "scripts/check_layers.py", "skills/*", "src/*"]


class Hbmprof(ConanFile):
    name = "hbmprof"
    description = "The heap profiler for accelerator memory"
    license = "Apache-2.0"
    topics = ("profiler", "gpu", "cuda", "tpu", "memory")
    settings = "os", "arch", "compiler", "build_type"

    def set_version(self):
        with open(os.path.join(self.recipe_folder, REPOSITORY, "include/hbmprof/version.h"), encoding="utf-8") as file:
            self.version = ".".join(re.findall(r"#define HBMPROF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read()))

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, os.path.join(self.recipe_folder, REPOSITORY), self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("hbmprof runs on Linux, on x86-64 and aarch64")

    def system_requirements(self):
        Apt(self).install(["libabsl-dev", "libdeflate-dev", "zlib1g-dev", "libelf-dev", "libiberty-dev",
                           "libprotozero-dev"])

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        # The command needs further libraries. The packages of docs/install.md have it.
        toolchain.cache_variables["HBMPROF_BUILD_TOOL"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # Programs use the CMake package of hbmprof itself: its targets know the libraries of the system.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "hbmprof")]
