#!/usr/bin/env python3
"""Builds a program of examples/c_api against the installed shared library, runs it, and reads its profile.

usage: language_test.py c|rust|go|python PREFIX EXAMPLES WORK

Exits 77, which skips the test, if the language's compiler is not on this machine.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import profile_fields


def tool(name):
  path = shutil.which(name)
  if path is None:
    print(f"there is no {name} on this machine")
    sys.exit(77)
  return path


def run(command, cwd, **environment):
  """Returns the standard output of a command, which must succeed and print no warning."""
  done = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **environment}, text=True,
                        capture_output=True, timeout=300)
  if done.returncode != 0 or done.stderr:
    sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
  return done.stdout


def build_c(prefix, examples, work):
  # As a C programmer builds it: with every warning, and with optimisation, which finds reads of uninitialized memory.
  flags = run([tool("pkg-config"), "--cflags", "--libs", "hbmprof-c"], work,
              PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).split()
  if "absl" in " ".join(flags):
    sys.exit(f"a C program does not need abseil: {flags}")
  run([tool("gcc"), "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", examples / "cache.c", *flags,
       f"-Wl,-rpath,{prefix}/lib", "-o", "cache"], work)
  return ["./cache"], {"main"}


def build_rust(prefix, examples, work):
  run([tool("rustc"), "-D", "warnings", examples / "cache.rs", "-L", f"native={prefix}/lib", "-l", "hbmprof",
       "-C", f"link-arg=-Wl,-rpath,{prefix}/lib", "-C", "symbol-mangling-version=v0", "-o", "cache"], work)
  return ["./cache"], {"<cache::Cache>::add_page", "cache::run", "cache::main"}


def build_go(prefix, examples, work):
  run([tool("go"), "build", "-o", work / "cache", examples / "cache.go"], work, GO111MODULE="off",
      GOCACHE=str(work / "go_cache"), CGO_ENABLED="1", CGO_CFLAGS=f"-I{prefix}/include",
      CGO_LDFLAGS=f"-L{prefix}/lib -lhbmprof -Wl,-rpath,{prefix}/lib")
  return ["./cache"], {"main.(*cache).addPage", "main.run", "main.main"}


def build_python(prefix, examples, work):
  del work
  return [sys.executable, examples / "cache.py", prefix / "lib/libhbmprof.so"], set()


BUILDS = {"c": build_c, "rust": build_rust, "go": build_go, "python": build_python}


def main():
  language, *folders = sys.argv[1:]
  prefix, examples, work = (pathlib.Path(folder) for folder in folders)
  shutil.rmtree(work, ignore_errors=True)
  work.mkdir(parents=True)
  command, functions = BUILDS[language](prefix, examples, work)
  printed = run([*command, "cache.pb.gz"], work)
  if printed != "8192 bytes in use, peak 20480\n":
    sys.exit(f"the program printed {printed!r}")

  profile = profile_fields.Profile(work / "cache.pb.gz")
  for sample_type, expected in (("inuse_space", 8192), ("inuse_objects", 2), ("peak_space", 20480)):
    if profile.total(sample_type) != expected:
      sys.exit(f"{sample_type} is {profile.total(sample_type)}, not {expected}")
  labels = {("device", "npu:0"), ("kind", "device"), ("allocator", "cache"), ("phase", "decode")}
  if profile.labels() != labels:
    sys.exit(f"the labels are {sorted(profile.labels())}, not {sorted(labels)}")
  missing = functions - profile.functions()
  if missing:
    sys.exit(f"not in the profile: {sorted(missing)}; it has {sorted(profile.functions())}")


if __name__ == "__main__":
  main()
