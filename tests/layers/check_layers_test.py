#!/usr/bin/env python3
"""Shows that the layer check fails, and the build with it, on each kind of edge that src/README.md does not allow.

usage: check_layers_test.py REPOSITORY CMAKE
Each test makes a small tree with the project's own src/README.md and one file in it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = ""
CMAKE = ""


class CheckLayers(unittest.TestCase):

  def setUp(self):
    self.root = tempfile.mkdtemp(prefix="hbmprof_layers.")
    self.addCleanup(shutil.rmtree, self.root)
    with open(os.path.join(REPOSITORY, "src/README.md"), encoding="utf-8") as readme:
      self.write("src/README.md", readme.read())
    self.write("src/base/hash.h", "#include <cstdint>\n")
    self.write("src/core/sites.h", '#include "src/base/hash.h"\n')
    self.write("include/hbmprof/profiler.h", "#include <memory>\n")

  def write(self, path, text):
    path = os.path.join(self.root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
      file.write(text)

  def check(self):
    script = os.path.join(REPOSITORY, "scripts/check_layers.py")
    return subprocess.run([sys.executable, script, self.root], capture_output=True, text=True)

  def expect_refused(self, path, code, reason):
    self.write(path, code)
    result = self.check()
    self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
    self.assertIn(reason, result.stderr)

  def test_a_tree_that_keeps_to_the_tables_passes(self):
    result = self.check()
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_an_include_of_a_higher_module_is_refused(self):
    self.expect_refused("src/base/bad.cc", 'int i;\n#include "src/core/sites.h"\n',
                        "src/base/bad.cc:2: src/base may not include src/core/sites.h (src/core)")

  def test_export_may_not_see_core(self):
    self.expect_refused("src/export/bad.cc", '#include "src/core/sites.h"\n', "src/export may not include")

  def test_a_backend_may_not_see_another(self):
    self.expect_refused("src/backends/cuda/bad.cc", '#include "src/backends/simulated/arena.h"\n',
                        "src/backends/cuda may not include src/backends/simulated/arena.h")

  def test_the_tracking_allocator_may_use_public_headers_only(self):
    self.expect_refused("src/backends/tracking_allocator.cc", '#include "src/base/hash.h"\n',
                        "src/backends may not include src/base/hash.h")

  def test_a_public_header_may_not_see_the_inside(self):
    self.expect_refused("include/hbmprof/bad.h", '#include "src/base/hash.h"\n',
                        "include/hbmprof may not include src/base/hash.h")

  def test_an_example_may_not_see_the_inside(self):
    self.expect_refused("examples/bad.cc", '#include "src/core/sites.h"\n', "examples may not include")

  def test_the_tool_may_not_see_the_inside(self):
    self.expect_refused("src/tool/bad.cc", '#include "src/core/sites.h"\n', "src/tool may not include")

  def test_a_folder_of_the_tool_may_not_see_one_below_it(self):
    self.write("src/tool/commands/command.h", "")
    self.expect_refused("src/tool/profile/bad.cc", '#include "src/tool/commands/command.h"\n',
                        "src/tool/profile may not include src/tool/commands/command.h (src/tool/commands)")

  def test_a_cycle_of_includes_in_the_tool_is_refused(self):
    self.write("src/tool/util/a.h", "")
    self.write("src/tool/util/a.cc", '#include "src/tool/util/b.h"\n')
    self.write("src/tool/util/b.h", '#include "src/tool/util/c.h"\n')
    self.expect_refused("src/tool/util/c.cc", '#include "src/tool/util/a.h"\n',
                        "a cycle of includes: src/tool/util/a -> src/tool/util/b -> src/tool/util/c -> src/tool/util/a")

  def test_a_cycle_of_includes_in_the_core_is_refused(self):
    self.write("src/core/ledger/a.h", '#include "src/core/ledger/b.h"\n')
    self.expect_refused("src/core/ledger/b.cc", '#include "src/core/ledger/a.h"\n',
                        "a cycle of includes: src/core/ledger/a -> src/core/ledger/b -> src/core/ledger/a")

  def test_a_cycle_of_includes_in_a_backend_is_refused(self):
    self.write("src/backends/pjrt/a.h", '#include "src/backends/pjrt/b.h"\n')
    self.expect_refused("src/backends/pjrt/b.h", '#include "src/backends/pjrt/a.h"\n', "a cycle of includes")

  def check_objects(self, sources):
    build = os.path.join(self.root, "build")
    for target, path, code in sources:
      self.write(path, code)
      folder = os.path.join(build, "src", "CMakeFiles", target + ".dir")
      output = os.path.join(folder, os.path.relpath(path, "src") + ".o")
      os.makedirs(os.path.dirname(output), exist_ok=True)
      subprocess.run(["c++", "-c", os.path.join(self.root, path), "-o", output], check=True)
    script = os.path.join(REPOSITORY, "scripts/check_layers.py")
    return subprocess.run([sys.executable, script, self.root, build], capture_output=True, text=True)

  def test_a_function_that_a_module_above_defines_is_refused(self):
    uses = "namespace hbmprof::internal { void Hook(); void Call() { Hook(); } }\n"
    defines = "namespace hbmprof::internal { void Hook() {} }\n"
    backend = ("hbmprof", "src/backends/pjrt/call.cc", uses)
    result = self.check_objects([backend, ("hbmprof_pjrt", "src/inject/hook.cc", defines)])
    self.assertEqual(result.returncode, 1, result.stdout)
    self.assertIn("src/backends/pjrt/call.cc: src/backends/pjrt may not use hbmprof::internal::Hook(), defined in "
                  "src/inject/hook.cc", result.stderr)
    os.remove(os.path.join(self.root, "build/src/CMakeFiles/hbmprof_pjrt.dir/inject/hook.cc.o"))
    result = self.check_objects([backend, ("hbmprof", "src/base/hook.cc", defines)])
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_the_library_may_not_see_the_tests(self):
    self.write("tests/support/fake.h", "")
    self.expect_refused("src/core/bad.cc", '#include "tests/support/fake.h"\n', "tests/support/fake.h (in no module)")

  def test_a_relative_path_is_seen_through(self):
    self.expect_refused("src/base/bad.cc", '#include "../core/sites.h"\n', "may not include src/core/sites.h")

  def test_a_path_below_an_include_folder_is_seen_through(self):
    self.expect_refused("src/base/bad.cc", "#  include <core/sites.h>\n", "may not include src/core/sites.h")

  def test_a_macro_as_include_is_refused(self):
    self.expect_refused("src/base/bad.cc", "#include SITES_H\n", "cannot be checked")
    self.expect_refused("src/base/bad.cc", '#define CALLS "src/core/sites.h"\n#include CALLS\n', "may not include")

  def test_a_folder_without_a_row_is_refused(self):
    self.expect_refused("src/misc/bad.cc", "int i;\n", "lies in no module")

  def test_a_vendor_header_outside_its_backend_is_refused(self):
    for path in ("src/core/bad.cc", "src/backends/simulated/bad.cc", "include/hbmprof/bad.h", "examples/bad.cc"):
      with self.subTest(path):
        self.expect_refused(path, "#include <cuda_runtime_api.h>\n", "may not include cuda_runtime_api.h")
        os.remove(os.path.join(self.root, path))

  def test_a_vendor_header_in_its_backend_passes(self):
    self.write("src/backends/cuda/good.cc", "#include <cuda_runtime_api.h>\n")
    self.write("include/hbmprof/cuda.h", "#include <cuda_runtime_api.h>\n")
    result = self.check()
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_abseils_mutex_is_refused_by_header_and_by_name(self):
    self.expect_refused("src/core/bad.cc", '#include "absl/synchronization/mutex.h"\n', "may not include absl/")
    self.expect_refused("src/core/bad.cc", "absl::Mutex* m;\n", "src/core may not use absl::Mutex")

  def test_protobuf_in_the_library_is_refused(self):
    self.expect_refused("src/export/bad.cc", "#include <google/protobuf/message.h>\n", "may not include google/")
    self.expect_refused("src/export/bad.cc", '#include "proto/profile.pb.h"\n', "may not include proto/profile.pb.h")

  def test_comments_and_strings_are_no_code(self):
    self.write("src/base/good.cc",
               '// #include "src/core/sites.h"\n/*\n#include "src/core/sites.h"\n*/\n'
               "// absl::Mutex is too slow\nconst char* s = \"absl::Mutex\";\n")
    result = self.check()
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_a_table_with_a_cycle_is_refused(self):
    self.write("src/README.md", "| module | may include |\n|---|---|\n| `src/base` | `src/core` |\n"
               "| `src/core` | `src/base` |\n\n| from outside | which |\n|---|---|\n| `x.h` | |\n")
    result = self.check()
    self.assertEqual(result.returncode, 2)
    self.assertIn("not a module above it", result.stderr)

  def test_a_missing_table_is_refused(self):
    self.write("src/README.md", "no table here\n")
    self.assertEqual(self.check().returncode, 2)

  def build(self):
    self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(tree LANGUAGES NONE)\n"
               f"include({REPOSITORY}/cmake/hbmprof_layers.cmake)\n"
               "hbmprof_check_layers(layers ${CMAKE_CURRENT_SOURCE_DIR})\n")
    build = os.path.join(self.root, "build")
    subprocess.run([CMAKE, "-G", "Ninja", "-S", self.root, "-B", build], check=True, capture_output=True)
    return subprocess.run([CMAKE, "--build", build], capture_output=True, text=True)

  def test_the_build_passes_without_and_fails_with_a_forbidden_edge(self):
    result = self.build()
    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
    self.write("src/base/bad.cc", '#include "src/core/sites.h"\n')
    result = self.build()
    self.assertNotEqual(result.returncode, 0)
    self.assertIn("src/base may not include src/core/sites.h", result.stdout + result.stderr)


if __name__ == "__main__":
  REPOSITORY, CMAKE = os.path.abspath(sys.argv[1]), sys.argv[2]
  unittest.main(argv=sys.argv[:1])
