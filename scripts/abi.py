#!/usr/bin/env python3
"""Compares the binary interface of libhbmprof.so with the stored dump tests/abi/libhbmprof.txt.

usage: scripts/abi.py [--update] [LIBRARY]    LIBRARY: build/dev/src/libhbmprof.so; it must have debug information

The dump has one line for each exported name, and for each type of the public headers its size, its fields, its virtual
functions and its enumerators. If lines of the dump are missing in the library, exits 1 and lists them: programs that
were linked with an earlier library would not run, so the version must change (docs/versions.md), and --update writes
the dump again. Additional lines are allowed; --update adds them to the dump. Exits 77 if abidw (Debian: abigail-tools)
is missing.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEPT = os.path.join(ROOT, "tests/abi/libhbmprof.txt")
TYPES = ("class-decl", "union-decl", "enum-decl", "typedef-decl", "type-decl")


class Dump:
  """The lines of the dump of a library, made from the output of abidw."""

  def __init__(self, library):
    abidw = ["abidw", "--exported-interfaces-only", "--no-show-locs", "--no-parameter-names", library]
    self.root = ElementTree.fromstring(subprocess.run(abidw, check=True, capture_output=True).stdout)
    self.types = {}  # id -> (element, name with its scopes)
    self.private = set()  # ids
    for unit in self.root.iter("abi-instr"):
      self.find_types(unit, [])
    self.lines = set()

  def find_types(self, element, scopes):
    name = element.get("name")
    if element.tag == "member-type" and element.get("access") == "private":
      self.private.update(child.get("id") for child in element)
    if element.get("id"):
      # A declaration of a type that another unit defines has the same id or fewer details.
      known = self.types.get(element.get("id"))
      if known is None or known[0].get("is-declaration-only"):
        self.types[element.get("id")] = (element, "::".join(scopes + [name or ""]))
    inner = scopes + [name] if element.tag in ("namespace-decl", "class-decl", "union-decl") and name else scopes
    for child in element:
      self.find_types(child, inner)

  def name_of(self, type_id):
    element, name = self.types[type_id]
    if element.tag == "pointer-type-def":
      return self.name_of(element.get("type-id")) + "*"
    if element.tag == "reference-type-def":
      return self.name_of(element.get("type-id")) + ("&" if element.get("kind") == "lvalue" else "&&")
    if element.tag == "qualified-type-def":
      qualifiers = [word for word in ("const", "volatile") if element.get(word) == "yes"]
      return " ".join([self.name_of(element.get("type-id"))] + qualifiers)
    if element.tag == "array-type-def":
      return f"{self.name_of(element.get('type-id'))}[{int(element.get('size-in-bits')) // 8} bytes]"
    return name if element.tag in TYPES else element.tag

  def add_functions(self):
    by_symbol = {}
    for function in self.root.iter("function-decl"):
      if function.get("elf-symbol-id"):
        by_symbol[function.get("elf-symbol-id")] = function
    for symbol in self.root.iter("elf-symbol"):
      function = by_symbol.get(symbol.get("name"))
      line = symbol.get("name")
      if function is not None:
        # C++ names have the parameters in them.
        if not line.startswith("_Z"):
          line += f"({', '.join(self.name_of(parameter.get('type-id')) for parameter in function.iter('parameter'))})"
        returned = self.name_of(function.find("return").get("type-id"))
        line += "" if returned == "void" else " returns " + returned
      self.lines.add(line)

  def add_type(self, element, name):
    if element.get("is-declaration-only"):
      return
    if element.tag == "enum-decl":
      self.lines.add(f"enum {name}: {self.name_of(element.find('underlying-type').get('type-id'))}")
      self.lines.update(f"enumerator {name}::{value.get('name')} = {value.get('value')}"
                        for value in element.iter("enumerator"))
      return
    # A struct of the C interface may grow: its struct_size is the size that a program knows.
    if not name.startswith("hbmprof_"):
      self.lines.add(f"class {name}: {int(element.get('size-in-bits')) // 8} bytes")
    for base in element.findall("base-class"):
      self.lines.add(f"class {name}: base {self.name_of(base.get('type-id'))} at {base.get('layout-offset-in-bits')}")
    for member in element.findall("data-member"):
      if member.get("static") != "yes":
        field = member.find("var-decl")
        self.lines.add(f"field {name}::{field.get('name')}: bit {member.get('layout-offset-in-bits')}, "
                       f"{self.name_of(field.get('type-id'))}")
    slots = 0
    for member in element.findall("member-function"):
      if int(member.get("vtable-offset", -1)) >= 0:
        slots += 1
        self.lines.add(f"virtual {name} {member.get('vtable-offset')}: {member.find('function-decl').get('mangled-name')}")
    if slots > 0:
      self.lines.add(f"class {name}: {slots} virtual functions")

  def text(self):
    self.add_functions()
    for type_id, (element, name) in self.types.items():
      if element.tag in ("class-decl", "enum-decl") and name.startswith(("hbmprof::", "hbmprof_")) \
          and not name.startswith("hbmprof::internal::") and type_id not in self.private:
        self.add_type(element, name)
    text = "\n".join(self.lines)
    text = subprocess.run(["c++filt"], input=text, check=True, capture_output=True, text=True).stdout
    return "".join(line + "\n" for line in sorted(set(text.splitlines())))


def main():
  arguments = sys.argv[1:]
  update = arguments[:1] == ["--update"]
  library = (arguments[update:] or [os.path.join(ROOT, "build/dev/src/libhbmprof.so")])[0]
  if not shutil.which("abidw"):
    print("abidw is missing (Debian: abigail-tools)")
    sys.exit(77)
  now = Dump(library).text()
  if "enum hbmprof::MemoryKind" not in now:
    sys.exit(f"error: {library} has no debug information: build it with -g")
  if update:
    with open(KEPT, "w", encoding="utf-8") as file:
      file.write(now)
    print(f"{KEPT} is written again: {len(now.splitlines())} lines")
    return
  with open(KEPT, encoding="utf-8") as file:
    kept = set(file.read().splitlines())
  gone = sorted(kept - set(now.splitlines()))
  if gone:
    print("\n".join(gone))
    sys.exit("error: the library lacks these lines of tests/abi/libhbmprof.txt, so programs that were linked with an "
             "earlier libhbmprof.so would not run. If this is intended, see docs/versions.md and run: "
             "scripts/abi.py --update")
  print(f"{len(kept)} lines are unchanged, {len(set(now.splitlines()) - kept)} are new")


if __name__ == "__main__":
  main()
