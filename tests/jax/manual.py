#!/usr/bin/env python3
"""Runs the two programs of JAX's manual on a wrapped PJRT plugin: hbmprof's profiles must attribute the memory to the
functions to which JAX's own profiles attribute it, and to those that the manual names.

usage: manual.py SHIM PLUGIN PYPI TOOL
  SHIM    libhbmprof_pjrt.so
  PLUGIN  the plugin that it wraps
  PYPI    a folder with jax (pip install --target)
  TOOL    the command hbmprof

Prints the bytes as a table. Exits 0 if they agree, 1 if not, 77 if a needed package is missing.
"""
import json
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "manual_programs.py")
BUFFERS = {"jaxs": "kind=buffer", "ours": "kind=device"}

failed = 0


def run_tool(tool, *arguments):
  return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout


def cumulative(tool, maker, arguments):
  """Returns {function: bytes of the buffers under it}."""
  rows = json.loads(run_tool(tool, *arguments, "--json", "-n", "0", "--cum", "--where", BUFFERS[maker]))["rows"]
  return {row["function"]: row["cum"] for row in rows}


def expect(what, found, wanted):
  global failed
  same = found == wanted
  failed += not same
  print(f"  {what:<44} {found!s:>12}{'' if same else f'   DIFFERENT: {wanted} expected'}")


def run(folder, arguments, program):
  shim, plugin, pypi, _ = arguments
  os.makedirs(folder)
  done = subprocess.run(
      [sys.executable, PROGRAMS, program, folder, shim], capture_output=True, text=True, check=False,
      env={**os.environ, "PYTHONPATH": pypi, "HBMPROF_PJRT_PLUGIN": plugin, "PJRT_NAMES_AND_LIBRARY_PATHS": f"wrapped:{shim}",
           "JAX_PLATFORMS": "wrapped"})
  if done.returncode != 0:
    sys.exit(f"the program {program} failed with {done.returncode}: {done.stderr}")


def check_functions(tool, folder):
  for maker in BUFFERS:
    found = cumulative(tool, maker, ["top", f"{folder}/{maker}.1.pb.gz"])
    expect(f"{maker}: under func2", found.get("func2"), 80000000)
    expect(f"{maker}: under func1", found.get("func1"), 40000000)


def check_growth(tool, folder):
  grown = sum(40000 * i for i in range(2, 10))
  for maker in BUFFERS:
    found = cumulative(tool, maker, ["diff", f"{folder}/{maker}.1.pb.gz", f"{folder}/{maker}.9.pb.gz"])
    expect(f"{maker}: growth under anotherfunc", found.get("anotherfunc"), grown)
    expect(f"{maker}: growth under afunction", found.get("afunction", 0), 0)


def main(arguments):
  if len(arguments) != 4:
    print(__doc__)
    return 2
  shim, plugin, pypi, tool = arguments
  for needed in (shim, plugin, os.path.join(pypi, "jax"), tool):
    if not os.path.exists(needed):
      print(f"not here: {needed} (scripts/pjrt_test.sh installs JAX and a plugin)")
      return SKIPPED
  probe = subprocess.run([sys.executable, "-c", "import jax; print(jax.__version__)"], capture_output=True, text=True,
                         check=False, env={**os.environ, "PYTHONPATH": pypi})
  if probe.returncode != 0:
    print(f"JAX cannot be used here: {probe.stderr.strip().splitlines()[-1]}")
    return SKIPPED
  print(f"JAX {probe.stdout.strip()}, CPython {sys.version.split()[0]}")
  with tempfile.TemporaryDirectory() as root:
    for program, check in (("functions", check_functions), ("growth", check_growth)):
      folder = os.path.join(root, program)
      run(folder, arguments, program)
      check(tool, folder)
    print(run_tool(tool, "top", "--tree", "--own", "--focus", "^func2$",
                   os.path.join(root, "functions/ours.1.pb.gz")))
  print("the same attribution" if failed == 0 else f"{failed} differ")
  return 0 if failed == 0 else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
