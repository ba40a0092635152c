"""Builds the programs of tests/consumer/project with the package, once for each library in it, and runs them."""
import os

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout

REPOSITORY = os.path.join("..", "..", "..")
PROJECT = os.path.join(REPOSITORY, "tests", "consumer", "project")
KINDS = ("static", "shared")


class HbmprofTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self, build_folder=os.path.join(REPOSITORY, "build", "conan"))

    def generate(self):
        CMakeToolchain(self).generate()

    def build(self):
        for kind in KINDS:
            cmake = CMake(self)
            cmake.configure(variables={"KIND": kind}, build_script_folder=PROJECT, subfolder=kind)
            cmake.build(subfolder=kind)

    def test(self):
        if not can_run(self):
            return
        for kind in KINDS:
            for program in ("consumer", "c_consumer"):
                path = os.path.join(self.build_folder, kind, program)
                self.run(f"{path} {path}.pb.gz", env="conanrun")
                if os.path.getsize(f"{path}.pb.gz") == 0:
                    raise ConanException(f"{path} wrote an empty profile")
