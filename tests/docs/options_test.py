#!/usr/bin/env python3
"""Checks that the documents name the environment variables of src/api/public/options.inc, and no others.

usage: options_test.py SOURCE
"""

import pathlib
import re
import sys

# Variables that OptionsFromEnvironment reads by functions of their own.
OTHER = ["HBMPROF_UNWINDER", "HBMPROF_TAGS"]
# Variables of the injected libraries and of the command.
ELSEWHERE = {"HBMPROF_GPU_OUTPUT", "HBMPROF_CAPTURE_RANGE", "HBMPROF_NVTX", "HBMPROF_PJRT_PLUGIN", "HBMPROF_TOOL_MEMORY"}
MOST_VARIABLES = 22


def main():
  root = pathlib.Path(sys.argv[1])
  problems = []
  table = re.findall(r'^[A-Z_0]+\("(HBMPROF\w*)"', (root / "src/api/public/options.inc").read_text(), re.MULTILINE) + OTHER
  known = set(table) | ELSEWHERE
  if len(known) > MOST_VARIABLES:
    problems.append(f"there are {len(known)} variables, not {MOST_VARIABLES} at most")

  program = (root / "docs/program.md").read_text()
  rows = re.findall(r"^\| `(HBMPROF\w*)=", program, re.MULTILINE)
  if rows != table:
    problems.append(f"docs/program.md lists {rows}, not {table}")
  listed = re.findall(r"^//   (HBMPROF\w*)=", (root / "include/hbmprof/options.h").read_text(), re.MULTILINE)
  if listed != table:
    problems.append(f"include/hbmprof/options.h lists {listed}, not {table}")
  problems += [f"docs/program.md does not name {name}" for name in ELSEWHERE if f"`{name}`" not in program]

  pages = [root / "README.md", *root.glob("docs/**/*.md"), root / "docs/hbmprof.1.in", root / "skills/hbmprof/SKILL.md",
           *root.glob("deploy/**/*.yaml"), *root.glob("deploy/**/*.service")]
  for page in pages:
    if page.name in ("install.md", "recipe.yaml"):  # options of CMake and of the recipes
      continue
    named = re.findall(r"(?:(?<!-D)\b(?=HBMPROF\w*=)|(?<=`)(?=HBMPROF\w*`)|(?<=name: ))(HBMPROF\w*)", page.read_text())
    for name in set(named):
      if name not in known:
        problems.append(f"{page.relative_to(root)} names {name}, which is no variable")
  print(f"{len(table)} variables of the table, {len(known)} in all")
  if problems:
    sys.exit("\n".join(sorted(problems)))


if __name__ == "__main__":
  main()
