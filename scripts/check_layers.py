#!/usr/bin/env python3
"""Checks every #include of the project against the two tables in src/README.md.

usage: check_layers.py [ROOT [BUILD]]

Prints one line per include or name that the tables do not allow, and per cycle of includes in `src`. With the folder of
a build, reads its objects instead, with nm: prints one line per internal name that a source of `src` uses and only
modules define that it may not include. Objects of several sources, such as those of the command, are left out: for
them only the includes are checked. Exits 1 if there is any; exits 2 if a table is malformed or there is nothing to
check. Only these tables define which module may include which.
"""

import fnmatch
import os
import re
import subprocess
import sys

MODULES_HEADING = "module"
OUTSIDE_HEADING = "from outside"
SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".inc", ".in")
# Folders without rules: they may include anything. All other code must be in a module.
UNRULED = ("tests", "proto", "docs", "third_party", "cmake", "scripts", "build")

# A file may include the macro CALLS; the file that defines it counts as the one that includes.
INCLUDE = re.compile(r"^\s*(?:#|%:)\s*(?:include(?! CALLS$)|include_next|import|define\s+CALLS)\b(.*)$")
TARGET = re.compile(r'^\s*(?:"([^"]+)"|<([^>]+)>)')
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


class TableError(Exception):
  pass


def read_table(text, heading):
  """Returns the rows (lists of cells) of the Markdown table whose first column is called `heading`."""
  rows = []
  inside = False
  for line in text.splitlines():
    cells = [c.strip() for c in line.strip().strip("|").split("|")]
    if not line.lstrip().startswith("|"):
      inside = False
    elif cells[0] == heading:
      inside = True
    elif inside and not set(cells[0]) <= set("-: "):
      rows.append(cells)
  if not rows:
    raise TableError(f"no table with the first column '{heading}'")
  return rows


def names(cell):
  """Returns the `quoted` names in a cell."""
  return re.findall(r"`([^`]+)`", cell)


def read_rules(readme):
  """Returns ({module: modules that it may include}, [(patterns, modules that may include them)])."""
  with open(readme, encoding="utf-8") as file:
    text = file.read()
  modules = {}
  for cells in read_table(text, MODULES_HEADING):
    named = names(cells[0])
    if len(named) != 1 or len(cells) < 2:
      raise TableError(f"a row must name one module and the modules that it may include: {cells}")
    module, allowed = named[0], names(cells[1])
    # A module names only modules above it, so the graph has no cycle.
    for other in allowed:
      if other not in modules:
        raise TableError(f"{module} may include {other}, which is not a module above it")
    modules[module] = set(allowed) | {module}
  outside = []
  for cells in read_table(text, OUTSIDE_HEADING):
    allowed = names(cells[1])
    for module in allowed:
      if module not in modules:
        raise TableError(f"{cells[0]}: {module} is not a module")
    outside.append((names(cells[0]), set(allowed)))
  return modules, outside


def module_of(path, modules):
  """Returns the most specific module that contains `path`, or None."""
  while path:
    if path in modules:
      return path
    path = os.path.dirname(path)
  return None


def resolve(root, includer, spelled):
  """Returns the path, relative to `root`, of the file to which `spelled` refers; None if it is not in the project."""
  for base in (os.path.dirname(includer), "", "include", "src"):
    candidate = os.path.normpath(os.path.join(base, spelled))
    if not candidate.startswith("..") and os.path.isfile(os.path.join(root, candidate)):
      return candidate
  # A file that does not exist (a generated one) still belongs to the module of its folder.
  if spelled.startswith("hbmprof/"):
    return os.path.join("include", spelled)
  return spelled if spelled.split("/")[0] in ("src", "tests", "examples", "benchmarks") else None


def blank_comments(text, strings_too):
  """Returns `text` without comments (and strings). Line numbers do not change."""
  def blank(match):
    token = match.group(0)
    if not token.startswith("/") and not strings_too:
      return token
    return re.sub(r"[^\n]", " ", token)
  return COMMENT_OR_STRING.sub(blank, text)


def check_file(root, path, modules, outside):
  """Yields one line for each include or name in `path` that the tables do not allow."""
  module = module_of(path, modules)
  if module is None:
    yield f"{path}: lies in no module of src/README.md"
    return
  with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
    text = file.read()
  for number, line in enumerate(blank_comments(text, strings_too=False).splitlines(), 1):
    include = INCLUDE.match(line)
    if not include:
      continue
    target = TARGET.match(include.group(1))
    if not target:
      yield f"{path}:{number}: an include that cannot be checked:{include.group(1)}"
      continue
    spelled = target.group(1) or target.group(2)
    resolved = resolve(root, path, spelled)
    if resolved is None:
      for patterns, allowed in outside:
        if module not in allowed and any(fnmatch.fnmatchcase(spelled, p) for p in patterns):
          yield f"{path}:{number}: {module} may not include {spelled}"
      continue
    target_module = module_of(resolved, modules)
    if target_module not in modules[module]:
      yield f"{path}:{number}: {module} may not include {resolved} ({target_module or 'in no module'})"
  code = blank_comments(text, strings_too=True)
  for patterns, allowed in outside:
    for name in patterns:
      if "::" in name and module not in allowed:
        for match in re.finditer(rf"\b{re.escape(name)}\b", code):
          yield f"{path}:{code.count(chr(10), 0, match.start()) + 1}: {module} may not use {name}"


def includes_of(root, path):
  """Yields the paths, relative to `root`, of the project's files that `path` includes."""
  with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
    text = file.read()
  for line in blank_comments(text, strings_too=False).splitlines():
    include = INCLUDE.match(line)
    target = include and TARGET.match(include.group(1))
    resolved = target and resolve(root, path, target.group(1) or target.group(2))
    if resolved:
      yield resolved


def cycles(root, files):
  """Yields one line for each cycle of includes in `src` that a search through `files` finds.

  A header and the source file of its name count as one."""
  def stem(path):
    return os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0])

  edges = {}
  for path in files:
    if path.startswith("src/"):
      edges.setdefault(stem(path), set()).update(stem(p) for p in includes_of(root, path) if stem(p) != stem(path))
  done = set()

  def search(node, trail):
    if node in trail:
      yield f"a cycle of includes: {' -> '.join(trail[trail.index(node):] + [node])}"
    elif node not in done:
      for other in sorted(edges.get(node, ())):
        yield from search(other, trail + [node])
      done.add(node)

  for node in sorted(edges):
    yield from search(node, [])


def source_of(root, build, object_file):
  """Returns the source, relative to `root`, that an object was compiled from; None if it is not one of src."""
  folder, _, name = os.path.relpath(object_file, build).partition("/CMakeFiles/")
  name = name.split(".dir/", 1)[-1][:-len(".o")].replace("__/", "../")
  for candidate in (os.path.join(folder, name), name):  # CMake writes a path outside of the target's folder as a whole
    source = os.path.normpath(candidate[candidate.rfind("/src/") + 1:])
    if source.startswith("src/") and os.path.isfile(os.path.join(root, source)):
      return source
  return None


def check_symbols(root, build, modules):
  """Returns (how many objects were read, one line for each internal name that is defined where it may not be used)."""
  users, definers = {}, {}
  count = 0
  for folder, subfolders, files in os.walk(build):
    # Not the builds of other projects in this one: a test may be writing them.
    subfolders[:] = [name for name in subfolders if not os.path.exists(os.path.join(folder, name, "CMakeCache.txt"))]
    for name in files:
      source = source_of(root, build, os.path.join(folder, name)) if name.endswith(".o") else None
      if source is None:
        continue
      count += 1
      listed = subprocess.run(["nm", "-C", os.path.join(folder, name)], check=True, capture_output=True, text=True)
      # An address, or spaces, then a letter and the name.
      for kind, symbol in re.findall(r"^[ 0-9a-f]{16,17} (\w) (hbmprof::internal::.*)$", listed.stdout, re.MULTILINE):
        if kind in "UTBDR":
          (users if kind == "U" else definers).setdefault(symbol, set()).add(source)
  problems = []
  for symbol in sorted(users.keys() & definers.keys()):
    # A source defines what its header declares, and a header can be a module of its own.
    defined_in = {module_of(os.path.splitext(source)[0] + ".h", modules) for source in definers[symbol]}
    for source in sorted(users[symbol]):
      module = module_of(source, modules)
      if not defined_in & modules[module]:
        problems.append(f"{source}: {module} may not use {symbol}, defined in {', '.join(sorted(definers[symbol]))}")
  return count, problems


def code_files(root):
  for folder, folders, files in os.walk(root):
    relative = os.path.relpath(folder, root)
    if relative == ".":
      folders[:] = [f for f in folders if f not in UNRULED and not f.startswith(".") and not f.startswith("build")]
    for name in files:
      if name.endswith(SUFFIXES):
        yield os.path.normpath(os.path.join(relative, name))


def main(arguments):
  root = arguments[1] if len(arguments) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
  try:
    modules, outside = read_rules(os.path.join(root, "src", "README.md"))
  except (TableError, OSError) as error:
    print(f"src/README.md: {error}", file=sys.stderr)
    return 2
  if len(arguments) > 2:
    count, problems = check_symbols(root, arguments[2], modules)
    what = "objects"
  else:
    files = sorted(code_files(root))
    problems = [line for path in files for line in check_file(root, path, modules, outside)]
    problems += cycles(root, files)
    count, what = len(files), "files"
  if not count:
    print(f"{root}: no code to check", file=sys.stderr)
    return 2
  for line in problems:
    print(line, file=sys.stderr)
  if problems:
    print(f"layers: {len(problems)} not allowed by src/README.md", file=sys.stderr)
    return 1
  print(f"layers: {count} {what} keep to src/README.md")
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
