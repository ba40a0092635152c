#!/usr/bin/env python3
"""`hbmprof run` on programs that use OpenCL, on real devices: PoCL of Debian and Intel's CPU driver of PyPI.

usage: opencl_test.py REPOSITORY TOOL LIBRARY PROGRAM
PROGRAM is opencl_program.c. Each test runs with each driver that is there, and with each of two loaders: ocl-icd of
Debian, and that of Khronos, which comes with Intel's driver. Exits with 77 if there is no driver.
"""

import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = TOOL = LIBRARY = PROGRAM = ""


def setups():
  """{name: environment}: a driver with a loader."""
  intel = os.path.join(REPOSITORY, "build/opencl/lib")
  drivers = {"pocl": "/etc/OpenCL/vendors/pocl.icd", "intel": os.path.join(intel, "libintelocl.so")}
  folders = [os.path.dirname(path) for path in glob.glob("/usr/lib/*/libOpenCL.so.1")]
  found = {}
  for name, path in drivers.items():
    if not os.path.exists(path):
      print(f"no driver of {name}: {path} is not there")
      continue
    vendors = tempfile.mkdtemp(prefix="vendors")
    library = path
    if path.endswith(".icd"):
      with open(path, encoding="utf-8") as file:
        library = file.read().strip()
    with open(os.path.join(vendors, name + ".icd"), "w", encoding="utf-8") as file:
      file.write(library + "\n")
    # OCL_ICD_VENDORS names a folder; Khronos's loader wants the last slash.
    environment = {"OCL_ICD_VENDORS": vendors + "/"}
    if folders:
      found[name + ", ocl-icd"] = {**environment, "LD_LIBRARY_PATH": f"{folders[0]}:{intel}"}
    if os.path.exists(os.path.join(intel, "libOpenCL.so.1")):
      found[name + ", Khronos's loader"] = {**environment, "LD_LIBRARY_PATH": intel}
  return found


def run(command, environment, **more):
  more.setdefault("env", {**os.environ, "HOME": tempfile.gettempdir(), **environment})
  return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **more)


class OpenclTest(unittest.TestCase):

  def setUp(self):
    self.output = tempfile.mkdtemp(prefix="opencl")

  def record(self, environment, *command, has_profile=True):
    """Runs the command under `hbmprof run`. Returns its output and the path of its profile; None if there is none."""
    output = tempfile.mkdtemp(dir=self.output)
    done = run([TOOL, "run", "--output", output, "--", *command], environment)
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    profiles = glob.glob(output + "/*.pb.gz")
    self.assertEqual(len(profiles), 1 if has_profile else 0, done.stderr)
    return done, profiles[0] if profiles else None

  def held(self, profile, what="inuse"):
    """{kind: (count, bytes)} of a profile."""
    sums = {}
    for unit, at in (("objects", 0), ("space", 1)):
      rows = json.loads(run([TOOL, "top", "--json", "--by", "kind", "--type", f"{what}_{unit}", profile], {}).stdout)
      for row in rows["rows"]:
        sums.setdefault(row["labels"]["kind"], [0, 0])[at] += row["flat"]
    return {kind: tuple(numbers) for kind, numbers in sums.items() if any(numbers)}

  def each(self):
    for name, environment in setups().items():
      with self.subTest(name):
        yield environment

  def expect_own_sums(self, environment, case):
    # A program that allocates nothing has no profile.
    plain = run([PROGRAM, "0", case], environment).stdout
    has_profile = case != "failures" and "no USM" not in plain
    done, profile = self.record(environment, PROGRAM, "0", case, has_profile=has_profile)
    self.assertEqual(plain.split("limit")[0], done.stdout.split("limit")[0], "the program's own results")
    if not has_profile:
      return done, profile, {}
    lines = [line.split() for line in done.stdout.splitlines()]
    own = {words[0]: (int(words[1]), int(words[2])) for words in lines if len(words) == 3 and words[0] != "limit"}
    self.assertEqual(self.held(profile), {kind: sums for kind, sums in own.items() if any(sums)}, done.stderr)
    text = gzip.open(profile).read()
    for number in (b"foreign_frees", b"replaced_records", b"dropped_records"):
      self.assertEqual(re.findall(number + rb"=(\d+)", text), [b"0"], number)
    return done, profile, own

  def test_the_sums_are_those_of_the_program(self):
    for environment in self.each():
      for case in ("leaks", "frees", "views", "retains", "images", "unified", "failures", "threads", "forks", "unloads",
                   "parts", "exits"):
        with self.subTest(case):
          self.expect_own_sums(environment, case)

  def test_the_calls_work_without_memory_for_the_layer(self):
    for environment in self.each():
      done = run([TOOL, "run", "--output", self.output, "--", PROGRAM, "0", "has_no_memory"], environment)
      self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

  def test_top_names_the_lines_that_leak(self):
    for environment in self.each():
      done, profile = self.record(environment, PROGRAM, "0", "leaks")
      run([TOOL, "symbolize", "-o", profile + ".named", profile], {})
      text = run([TOOL, "top", "--by", "line", profile + ".named"], {}).stdout
      with open(os.path.join(REPOSITORY, "tests/inject/opencl_program.c"), encoding="utf-8") as file:
        lines = file.read().splitlines()
      for call in ("clCreateBuffer(context, flags", "clSVMAlloc(context, CL_MEM_READ_WRITE, bytes, 0)"):
        line = next(i for i, text_of in enumerate(lines, 1) if call in text_of)
        self.assertIn(f"opencl_program.c:{line}", text)
      callers = run([TOOL, "top", "--tree", profile], {}).stdout
      self.assertIn("leaks_weights", callers)
      self.assertIn("leaks_cache", callers)
      self.assertIn("OpenCL:0:0", done.stderr)

  def test_nothing_is_held_after_all_is_freed(self):
    for environment in self.each():
      done, profile, _ = self.expect_own_sums(environment, "frees")
      self.assertEqual(self.held(profile), {})
      self.assertEqual(sum(count for count, _ in self.held(profile, "alloc").values()), 5)

  def test_the_limit_is_that_of_the_device(self):
    for environment in self.each():
      done, _ = self.record(environment, PROGRAM, "0", "leaks")
      total = next(line.split()[2] for line in done.stdout.splitlines() if line.startswith("limit"))
      output = tempfile.mkdtemp(dir=self.output)
      done = run([TOOL, "run", "--json", "--output", output, "--", PROGRAM, "0", "leaks"], environment)
      memories = json.loads(done.stderr.splitlines()[-1])["processes"][0]["memories"]
      self.assertEqual([memory["limit"] for memory in memories if memory["name"] == "OpenCL:0:0"], [int(total)])

  def test_the_users_layers_stay(self):
    for environment in self.each():
      show = ["sh", "-c", "echo $OPENCL_LAYERS"]
      for before, after in (("", LIBRARY), ("/none/a.so:/none/b.so", LIBRARY + ":/none/a.so:/none/b.so"),
                            ("/none/a.so:" + LIBRARY, "/none/a.so:" + LIBRARY)):
        done = run([TOOL, "run", "--output", self.output, "--", *show], {**environment, "OPENCL_LAYERS": before})
        self.assertEqual(done.stdout.strip(), after)
      self.record({**environment, "OPENCL_LAYERS": "/none/a.so"}, PROGRAM, "0", "leaks")

  def test_doctor_names_the_loader_and_the_drivers(self):
    for environment in self.each():
      done = run([TOOL, "doctor", "--json"], environment)
      self.assertEqual(done.returncode, 0, "no CUDA is needed: " + done.stdout)
      lines = json.loads(done.stdout)["lines"]
      text = [line["text"] for line in lines if line["topic"] == "OpenCL"]
      self.assertEqual(len(text), 1, lines)
      self.assertIn("libOpenCL.so.1 loads the library as a layer; OpenCL:0 is ", text[0])
      cuda = [line["problem"] for line in lines if line["topic"] == "driver"]
      self.assertEqual(cuda, [not any(line["text"].find(", CUDA ") > 0 for line in lines)], lines)

  def test_doctor_expects_no_layer_without_a_driver(self):
    for environment in self.each():
      text = run([TOOL, "doctor"], {**environment, "OCL_ICD_VENDORS": self.output + "/"}).stdout
      self.assertRegex(text, "\n  OpenCL .* has no driver\n")

  def test_doctor_survives_a_driver_that_aborts(self):
    source = "void abort(void); int clGetPlatformIDs(void) { abort(); } int clGetPlatformInfo(void) { return 0; }"
    run(["cc", "-shared", "-x", "c", "-", "-o", self.output + "/libOpenCL.so.1"], {}, input=source)
    done = run([TOOL, "doctor"], {"LD_LIBRARY_PATH": self.output})
    self.assertEqual(done.returncode, 1)
    self.assertIn("libhbmprof_gpu.so can be preloaded\n", done.stdout)
    self.assertIn("! OpenCL           a driver of OpenCL has ended this check (Aborted)\n", done.stdout)

  def test_pyopencl(self):
    packages = os.path.join(REPOSITORY, "build/opencl")
    if not os.path.exists(packages + "/pyopencl"):
      self.skipTest("build/opencl has no pyopencl")
    program = """
import numpy, pyopencl
context = pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]])
def load_weights(): return pyopencl.Buffer(context, pyopencl.mem_flags.READ_WRITE, 1 << 20)
kept = [load_weights() for _ in range(3)]
load_weights().release()
del context
"""
    for environment in self.each():
      file = os.path.join(self.output, "weights.py")
      with open(file, "w", encoding="utf-8") as out:
        out.write(program)
      _, profile = self.record({**environment, "PYTHONPATH": packages}, sys.executable, file)
      self.assertEqual(self.held(profile), {"device": (3, 3 << 20)})
      self.assertIn("load_weights", run([TOOL, "top", profile], {}).stdout)


if __name__ == "__main__":
  REPOSITORY, TOOL, LIBRARY, PROGRAM = sys.argv[1:5]
  if not setups():
    sys.exit(77)
  unittest.main(argv=[sys.argv[0]] + sys.argv[5:], verbosity=2)
