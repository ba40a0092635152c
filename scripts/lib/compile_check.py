#!/usr/bin/env python3
"""Lets the compiler check every source of a build folder, without the time for code, archives and programs.

usage: compile_check.py BUILD

Runs the commands of BUILD/compile_commands.json with -fsyntax-only: the compiler reads and analyses the source. A source
of several targets is checked once, with the command of the first. Assembler files are left out, and the tests, which
have no lock annotations and which gcc compiles. The generated sources and headers, and the precompiled headers, must
exist. Prints the compiler's messages of each command that fails. Exits 1 if a command fails, or if there is none.
"""

import concurrent.futures
import json
import os
import shlex
import subprocess
import sys


def check(entry):
  """Returns the messages of a failed command, or an empty text. A warning is a failure only with -Werror."""
  command = shlex.split(entry["command"])
  output = command.index("-o")
  done = subprocess.run(command[:output] + command[output + 2:] + ["-fsyntax-only"], cwd=entry["directory"],
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
  return "" if done.returncode == 0 else f"FAILED: {entry['file']}\n{done.stdout}"


def main():
  with open(os.path.join(sys.argv[1], "compile_commands.json"), encoding="utf-8") as file:
    sources = {entry["file"]: entry for entry in reversed(json.load(file))}
  tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests")
  entries = [entry for name, entry in sources.items()
             if not name.endswith((".s", "/cmake_pch.hxx.cxx")) and not name.startswith(os.path.normpath(tests) + "/")]
  with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
    failures = 0
    for message in threads.map(check, entries):
      print(message, end="", flush=True)
      failures += bool(message)
  print(f"{len(entries)} commands, {failures} failed")
  sys.exit(1 if failures or not entries else 0)


if __name__ == "__main__":
  main()
