#!/usr/bin/env python3
"""Checks README.md, docs/*.md, docs/spec/*.md and skills/hbmprof/SKILL.md: runs their commands, compiles their code,
follows their links.

usage: docs_test.py SOURCE BUILD WORK CMAKE CC CXX [PAGE...]
       docs_test.py --machine PAGE LOG [--skip COMMAND]... -- SHELL...
       docs_test.py --framework NAME WORK

The first form is the test. SOURCE is the repository, BUILD is its build folder with all targets built, WORK is a folder
for the files of the test. With PAGE (such as docs/cuda.md) only the code and commands of these pages are tested. Exits
with 0, 1 (a problem was found) or 77 (the test cannot run here).

The second form is for scripts/fresh_machine.sh: it runs the commands of one page as they are written, where nothing is
built, and prints their times. `SHELL... bash -c SCRIPT` runs a script in a clone of the repository. LOG gets the output.
Commands that begin with COMMAND are left out. The first command that fails ends the page.

The third form is for tests/frameworks/run.py: it runs the blocks `framework: NAME` of all pages, each with a shell in a
new folder of WORK that has the files of the page. The caller's environment has the framework and the command.

The first word after ``` selects how a block is tested:

  console          Commands after "$ ", each followed by its output on a terminal. A command whose line ends in \\
                   continues on the next line.
  cpp, c           A program, or statements of one (readers_program.h declares the functions of the program that they
                   use). It is compiled and linked with the installed package, without a warning.
  cmake            Lines that a reader adds to a CMakeLists.txt. They are configured with the installed package;
                   FetchContent takes the repository.
  python           Python code, which is compiled. The functions of the package hbmprof that it calls exist.
  sql              Nothing here: tests/tool runs the queries of docs/tables.md with DuckDB.
  text, or none    Nothing. No line begins with "$ ".

More words may follow:

  no-test: REASON  The block cannot be run or built here. It is listed at the end.
  new-machine: REASON  The same, but scripts/fresh_machine.sh runs it. Without output in the block, any output is right.
  framework: NAME  The same, but the third form runs it, also with any output for a command without output.
  needs PATH       The same as no-test, if neither the clone nor the installed package has PATH.
  FILE             (cpp, c, cmake) The block is written to FILE. If FILE is in no folder, it is also built with -g, to
                   the program FILE without its suffix; if it is in one, the page's own commands build it.
                   (python) The third form writes the block to FILE.

The commands of a page run in one shell, whose working directory looks like a clone of the repository in which
everything was built: build/release, build/dev and build/bench are BUILD, build/pprof is pprof, and scripts/demo.sh installs and
builds nothing. `hbmprof` is on the path, and the package is installed where CMake finds it. A command that exits with
another status than 0 is followed by "$ echo $?".

Output is compared exactly, with these exceptions:

  * "..." as a line matches any number of lines, "..." in a line matches any text. It cannot be the whole output.
  * Amounts of white space are not compared. These vary, so their values are not compared: durations (1.5 s, 65 us),
    rates (2376 tokens/s, 1.97 MiB/s), dates with times, process ids, and the times and random numbers in the names of
    profiles.
  * The working directory is /srv/hbmprof in the pages.
"""

import ast
import concurrent.futures
import difflib
import fnmatch
import glob
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios

PAGE_SECONDS = 240
MACHINE_SECONDS = 3 * 3600
SHOWN_ROOT = "/srv/hbmprof"

# The parts of the output that vary, and their replacements in a comparison.
MASKS = [
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}\.\d+\."), "RUN.PROCESS."),
    (re.compile(r"\bprocess \d+"), "process PROCESS"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\d+(\.\d+)? (ns|us|ms|s|tokens/s)\b"), r"N \2"),
    (re.compile(r"\d+(\.\d+)? (B|KiB|MiB|GiB)(/s| each second)\b"), r"N B\3"),
    (re.compile(r"[ \t]+"), " "),
]


def mask(line):
  for pattern, replacement in MASKS:
    line = pattern.sub(replacement, line)
  return line.rstrip()


def compare(expected, actual):
  """Compares the lines `actual` with the lines `expected` of the page. Returns the problem, or None if they match."""
  if expected and all(line.strip() == "..." for line in expected):
    return "the page shows nothing of the output but ..."
  while expected and not expected[-1].strip():
    expected = expected[:-1]
  pattern = ""
  for line in expected:
    if line.strip() == "...":
      pattern += r"(?:[^\n]*\n)*?"
    else:
      pattern += "[^\n]*".join(re.escape(part) for part in mask(line).split("...")) + "\n"
  if re.fullmatch(pattern, "".join(mask(line) + "\n" for line in actual)):
    return None
  return "\n".join(difflib.unified_diff([mask(line) for line in expected], [mask(line) for line in actual],
                                        "the page", "the command", lineterm="", n=100))


def check_compare():
  """Checks that compare() accepts and refuses the right texts, so that the test of the pages can fail."""
  for expected, actual, same in (
      (["leaked 39 pages", "in 1.2 s"], ["leaked 39 pages", "in 99.25 s"], True),
      (["leaked 39 pages"], ["leaked 40 pages"], False),
      (["first", "...", "last"], ["first", "a", "b", "last"], True),
      (["first", "...", "last"], ["first", "a", "b", "last", "more"], False),
      (["first"], ["first", "second"], False),
      (["first", "second"], ["first"], False),
      ([], ["an error"], False),
      (["from ... to"], ["from here  to"], True),
      (["..."], ["anything"], False),
  ):
    assert (compare(expected, actual) is None) == same, (expected, actual)


# A script that runs commands: START, and RUN with each command. In a command, $? is the exit status of the command
# before it. After a command comes MARKER with its status and the seconds since the start of the shell.
MARKER = "\x01docs_test "
LEFT_OUT = 256  # in place of the status of a command that was not run
START = "hbmprof_status=0\n"
RUN = ("(exit $hbmprof_status)\n{}\nhbmprof_status=$?\n"
       "printf '\\n\\001docs_test %d %d\\n' $hbmprof_status $SECONDS\n")


def shows_status(commands, index):
  return index + 1 < len(commands) and commands[index + 1][1] == "echo $?"


class Block:
  """A fenced block of a page."""

  def __init__(self, page, line, info, lines):
    self.page, self.line, self.lines = page, line, lines
    self.kind, _, rest = info.partition(" ")
    self.reason = self.needs = self.file = self.framework = ""
    word, _, reason = rest.partition(": ")
    self.is_for_new_machine = word == "new-machine"
    if word in ("no-test", "new-machine"):
      self.reason = reason.strip()
    elif word == "framework":
      self.framework = reason.strip()
      self.reason = f"needs {self.framework}; tests/frameworks/run.py runs it"
    elif rest.startswith("needs "):
      self.needs = rest[len("needs "):].strip()
    else:
      self.file = rest.strip()
    self.name = f"{page}:{line}"

  def commands(self):
    """The block's (line, command, output lines)."""
    commands = []
    lines = iter(enumerate(self.lines, self.line + 1))
    for number, line in lines:
      if line.startswith("$ "):
        command = line[2:]
        while command.endswith("\\"):
          command += "\n" + next(lines)[1]
        commands.append((number, command, []))
      elif not commands:
        raise ValueError(f"{self.page}:{number}: output before the first command")
      else:
        commands[-1][2].append(line)
    return commands


class Pages:
  """The pages of the repository `source`, and running their commands."""

  def __init__(self, source):
    self.source = source
    self.problems = []
    self.commands = 0
    self.pages = ["README.md", *sorted(glob.glob("docs/**/*.md", root_dir=source, recursive=True)),
                  "skills/hbmprof/SKILL.md"]
    self.texts = {page: self.read(page) for page in self.pages}
    self.blocks = [block for page in self.pages for block in self.read_blocks(page)]

  def read(self, path):
    with open(os.path.join(self.source, path), encoding="utf-8") as file:
      return file.read()

  def problem(self, where, what):
    self.problems.append(f"{where}: {what}")

  def read_blocks(self, page):
    blocks, start, info, lines = [], 0, "", []
    for number, line in enumerate(self.texts[page].splitlines(), 1):
      if not line.startswith("```"):
        lines.append(line)
        continue
      if start:
        blocks.append(Block(page, start, info, lines))
        start, lines = 0, []
      else:
        start, info, lines = number, line[3:].strip(), []
    if start:
      self.problem(f"{page}:{start}", "the block has no end")
    return blocks

  def run_shell(self, page, command, seconds, log=None, **options):
    """Runs a shell on a terminal of its own. Returns what it prints; the file `log` gets it, too."""
    terminal, shell_side = pty.openpty()
    attributes = termios.tcgetattr(shell_side)
    attributes[1] &= ~termios.OPOST  # no carriage returns
    termios.tcsetattr(shell_side, termios.TCSANOW, attributes)
    shell = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=shell_side, stderr=shell_side,
                             start_new_session=True, **options)
    os.close(shell_side)
    output = b""
    with concurrent.futures.ThreadPoolExecutor(1) as reader:

      def read_all():
        nonlocal output
        while True:
          try:
            data = os.read(terminal, 65536)
          except OSError:  # the last process that has the terminal has ended
            return
          if not data:
            return
          output += data
          if log:
            log.write(data)

      reading = reader.submit(read_all)
      try:
        shell.wait(seconds)
      except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        self.problem(page, f"the commands took more than {seconds} s")
      reading.result()
    os.close(terminal)
    # Without progress that later text overwrites.
    return re.sub(r"[^\n]*(\r|\x1b\[K)", "", output.decode("utf-8", errors="replace"))

  def check_output(self, page, commands, text):
    """Compares the output of a script of RUN parts with what the page shows. Returns the seconds since the start of the
    shell, at the end of each command that ran."""
    parts = text.split("\n" + MARKER)
    ends, failed = [], False
    for index, (line, command, expected) in enumerate(commands):
      where = f"{page}:{line}"
      # Each part but the first begins with the status of the command before.
      printed = parts[index] if index == 0 else parts[index].partition("\n")[2]
      if index + 1 >= len(parts):
        if not failed:  # on another machine, the first command that fails ends the page
          self.problem(where, f"$ {command}\ndid not end; printed before:\n{printed}")
        return ends
      status, seconds = map(int, parts[index + 1].partition("\n")[0].split())
      ends.append(seconds)
      if status == LEFT_OUT:
        continue
      if expected is not None:
        difference = compare(expected, printed.rstrip("\n").split("\n") if printed.rstrip("\n") else [])
        if difference:
          self.problem(where, f"$ {command}\n{difference}")
      failed = status != 0 and not shows_status(commands, index)
      if failed:
        self.problem(where, f"$ {command}\nexit status {status}; show it with $ echo $?\n{printed}")
      self.commands += 1
    return ends


class Test(Pages):

  def __init__(self, source, build, work, cmake, cc, cxx):
    super().__init__(source)
    self.build, self.work = build, work
    self.cmake, self.cc, self.cxx = cmake, cc, cxx
    self.prefix = os.path.join(work, "prefix")
    self.pprof = os.path.join(work, "pprof")
    self.no_make = os.path.join(work, "no_make")
    self.not_run = []
    self.snippets = 0

  # --- Checks of the text. ---

  def prose(self, page):
    """The page's text, with empty lines for its fenced blocks."""
    lines, inside = [], False
    for line in self.texts[page].splitlines():
      if line.startswith("```"):
        inside = not inside
        line = ""
      lines.append("" if inside else line)
    return "\n".join(lines)

  def check_text(self):
    for block in self.blocks:
      if block.kind == "python":
        self.check_python(block)
      elif block.kind not in ("console", "cpp", "c", "cmake", "sql", "text", ""):
        self.problem(block.name, f"unknown kind of block: {block.kind}")
      elif block.kind in ("text", "") and any(line.startswith("$ ") for line in block.lines):
        self.problem(block.name, "a command in a block that is not run: use console")
      elif block.kind == "console":
        block.commands()
    linked = set()
    for page in self.pages:
      linked |= self.check_links(page)
      self.check_names(page)
    for page in self.pages[1:]:
      if page not in linked:
        self.problem(page, "no page links it")
    self.check_packages()

  def check_python(self, block):
    try:
      code = ast.parse("\n".join(block.lines))
    except SyntaxError as error:
      self.problem(block.name, f"is no Python: {error}")
      return
    for node in ast.walk(code):
      if not isinstance(node, ast.Attribute):
        continue
      module, _, name = ast.unparse(node).rpartition(".")
      if module in ("hbmprof", "hbmprof.torch") and name not in self.python_names(module):
        self.problem(block.name, f"the module {module} has no {name}")

  def python_names(self, module):
    """The functions, classes and modules of hbmprof or hbmprof.torch."""
    folder = os.path.join(self.source, "python", "hbmprof")
    file = "__init__.py" if module == "hbmprof" else f"{module.partition('.')[2]}.py"
    with open(os.path.join(folder, file), encoding="utf-8") as source:
      names = {node.name for node in ast.parse(source.read()).body if hasattr(node, "name")}
    return names | ({"torch"} if module == "hbmprof" else set())

  def anchors(self, page):
    anchors = set()
    for line in self.prose(page).splitlines():
      if line.startswith("#"):
        title = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
        anchors.add(title.replace(" ", "-"))
    return anchors

  def check_links(self, page):
    """Checks that every link leads to a file, and to a heading of it. Returns the files."""
    linked = set()
    text = self.prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r' (?:src|srcset|href)="([^"\s]+)"', text):
      if re.match(r"https?://", target):
        continue
      path, _, anchor = target.partition("#")
      file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
      linked.add(file)
      if not os.path.exists(os.path.join(self.source, file)):
        self.problem(page, f"the link {target} leads to no file")
      elif anchor and (file not in self.pages or anchor not in self.anchors(file)):
        self.problem(page, f"the link {target} leads to no heading")
    return linked

  def check_names(self, page):
    """Checks that the files, options and environment variables that the text names exist."""
    text = self.prose(page)
    for found in re.finditer(r"`([^`]+)`|\bHBMPROF(?:_[A-Z]+)+\b", text):
      where = f"{page}:{text.count(chr(10), 0, found.start()) + 1}"
      for variable in re.findall(r"\bHBMPROF(?:_[A-Z]+)+\b", found.group()):
        if variable not in self.known_variables():
          self.problem(where, f"nothing reads {variable}")
      if span := " ".join((found.group(1) or "").split()):
        if re.fullmatch(r"(src|tests|scripts|benchmarks|examples|docs|third_party|proto)/[\w./-]*", span):
          if not os.path.exists(os.path.join(self.source, span)):
            self.problem(where, f"there is no {span}")
        elif re.fullmatch(r"hbmprof/\w+\.h", span):
          if not os.path.exists(os.path.join(self.source, "include", span)):
            self.problem(where, f"there is no header {span}")
        elif match := re.match(r"hbmprof ([a-z]+)", span):
          self.check_options(where, match.group(1), span.split(" -- ")[0])
        elif span.startswith("pprof -"):
          self.check_pprof_options(where, span)

  def check_options(self, where, command, span):
    result = subprocess.run([self.tool(), command, "--help"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
      self.problem(where, f"`{span}`: there is no command {command}")
    for option in re.findall(r" (--[a-z-]+|-[a-z])\b", span):
      if not re.search(re.escape(option) + r"\b", result.stdout):
        self.problem(where, f"`{span}`: {command} has no option {option}")

  def check_pprof_options(self, where, span):
    usage = subprocess.run([self.pprof, "-help"], capture_output=True, text=True, check=False)
    for option in re.findall(r" (-[a-z_]+)", span):
      if not re.search(rf"^ *{option}\b", usage.stdout + usage.stderr, re.MULTILINE):
        self.problem(where, f"`{span}`: pprof has no option {option}")

  def tool(self):
    return os.path.join(self.build, "src/tool/hbmprof")

  def known_variables(self):
    if not hasattr(self, "variables"):
      self.variables = set()
      for top in ("CMakeLists.txt", "cmake", "include", "src", "benchmarks", "scripts"):
        root = os.path.join(self.source, top)
        files = [root] if os.path.isfile(root) else [os.path.join(folder, name) for folder, _, names in os.walk(root)
                                                     for name in names if not name.endswith((".md", ".gz"))]
        for file in files:
          with open(file, encoding="utf-8", errors="replace") as opened:
            self.variables |= set(re.findall(r"\bHBMPROF(?:_[A-Z]+)+\b", opened.read()))
    return self.variables

  def check_packages(self):
    """Checks that docs/install.md names exactly the packages that scripts/lib/setup.sh installs, in its blocks
    `new-machine: installs packages`."""
    named = set()
    for block in self.blocks:
      is_read = block.page == "docs/install.md" and block.reason.startswith("installs packages")
      for _, command, _ in block.commands() if is_read else ():
        if command.startswith("apt-get install "):
          named |= set(command.replace("\\\n", " ").split()[2:])
    arrays = re.findall(r"^HBMPROF_\w+_PACKAGES=\(([^)]*)\)", self.read("scripts/lib/setup.sh"), re.MULTILINE)
    installed = set(" ".join(arrays).split())
    if named != installed:
      self.problem("docs/install.md", "the apt-get lines differ from scripts/lib/setup.sh in " +
                   " ".join(sorted(named ^ installed)))

  # --- Builds. ---

  def run(self, *command, **options):
    """Runs a command that must succeed. Returns whether it did."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                            check=False, **options)
    if result.returncode != 0:
      self.problem(shlex.join(command), f"exit status {result.returncode}\n{result.stdout}")
    return result.returncode == 0

  def is_to_do(self, block):
    """Returns whether the block can be tested here. If not, lists it."""
    if block.reason:
      self.not_run.append(f"{block.name}: {block.reason}")
      return False
    if block.needs:
      if not any(os.path.exists(os.path.join(root, block.needs)) for root in (self.scratch(block.page), self.prefix)):
        self.not_run.append(f"{block.name}: {block.needs} is not built here")
        return False
    return True

  def scratch(self, page):
    return os.path.join(self.work, "pages", page.replace("/", "_").removesuffix(".md"))

  def make_clone(self, page):
    """A folder like a clone in which everything was built."""
    scratch = self.scratch(page)
    os.makedirs(os.path.join(scratch, "build"))
    # Without the files that commands of the pages have written into the repository.
    with open(os.path.join(self.source, ".gitignore"), encoding="utf-8") as file:
      left_out = [".git"] + [line.strip().strip("/") for line in file]
    for name in os.listdir(self.source):
      if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out):
        os.symlink(os.path.join(self.source, name), os.path.join(scratch, name))
    for preset in ("release", "dev", "bench"):
      os.symlink(self.build, os.path.join(scratch, "build", preset))
    for name, path in (("pypi", os.path.join(self.source, "build/pypi")), ("pprof", self.pprof)):
      os.symlink(path, os.path.join(scratch, "build", name))

  def hide_make(self):
    """docs/install.md installs ninja and not make. So make fails here, as on a machine with only these packages."""
    os.makedirs(self.no_make)
    for name in ("make", "gmake"):
      path = os.path.join(self.no_make, name)
      with open(path, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\necho "docs/install.md does not install make: use -G Ninja" >&2\nexit 1\n')
      os.chmod(path, 0o755)

  def make_pprof(self):
    """google/pprof where scripts/demo.sh built it, else the one that comes with Go. Returns whether there is one."""
    built = os.path.join(self.source, "build/pprof")
    if os.access(built, os.X_OK):
      os.symlink(built, self.pprof)
    elif shutil.which("go"):
      with open(self.pprof, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\nexec go tool pprof "$@"\n')
      os.chmod(self.pprof, 0o755)
    else:
      return False
    return True

  def configure(self, folder, lists, *definitions):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
      file.write(lists)
    return self.run(self.cmake, "-G", "Ninja", "-S", folder, "-B", folder + "/build", f"-DCMAKE_C_COMPILER={self.cc}",
                    f"-DCMAKE_CXX_COMPILER={self.cxx}", f"-DCMAKE_PREFIX_PATH={self.prefix}", *definitions)

  def build_snippets(self, blocks):
    """One project with a program for each snippet."""
    folder = os.path.join(self.work, "snippets")
    os.makedirs(folder)
    lists = ("cmake_minimum_required(VERSION 3.25)\nproject(snippets LANGUAGES C CXX)\nfind_package(hbmprof REQUIRED)\n"
             "find_package(GTest)\nfind_package(CUDAToolkit QUIET)\nadd_compile_options(-Wall -Wextra -Werror)\n")
    programs = []
    for number, block in enumerate(blocks):
      text = "\n".join(block.lines) + "\n"
      if block.file:
        path = os.path.join(self.scratch(block.page), block.file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
          file.write(text)
        if "/" in block.file:
          continue
      name = f"snippet_{number}"
      if block.file:
        # Compiled in the folder in which the reader has it, so that its lines have that path.
        lists += (f"add_executable({name} {path})\ntarget_compile_options({name} PRIVATE -g)\n"
                  f"target_link_libraries({name} PRIVATE hbmprof::hbmprof hbmprof::simulated)\n")
        programs.append((name, os.path.splitext(path)[0]))
        self.snippets += 1
        continue
      is_program = re.search(r"^(int main\(|TEST\()", text, re.MULTILINE)
      with open(os.path.join(folder, f"{name}.{block.kind.replace('cpp', 'cc')}"), "w", encoding="utf-8") as file:
        if is_program:
          file.write(f'#line {block.line + 1} "{block.page}"\n{text}')
        else:
          includes = "".join(line + "\n" for line in block.lines if line.startswith("#include"))
          rest = "".join("\n" if line.startswith("#include") else line + "\n" for line in block.lines)
          file.write(f'{includes}#include "tests/docs/readers_program.h"\nint main() {{\n'
                     f'#line {block.line + 1} "{block.page}"\n{rest}}}\n')
      libraries = ["hbmprof::hbmprof", "hbmprof::simulated"]
      if "<hbmprof/cuda.h>" in text:
        libraries += ["hbmprof::cuda", "CUDA::cudart_static"]
      if "<hbmprof/adapters/" in text:
        # The toolkit's CCCL and CUB, and declarations of what a machine does not have.
        lists += (f"add_library({name}_headers INTERFACE)\n"
                  f"target_include_directories({name}_headers SYSTEM INTERFACE {self.source}/tests/adapters/declarations"
                  " ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS}/cccl)\n"
                  f"target_compile_definitions({name}_headers INTERFACE"
                  " LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)\n")
        libraries += [f"{name}_headers", "$<TARGET_NAME_IF_EXISTS:CUDA::cudart_static>"]
      if "<hbmprof/adapters/torch.h>" in text:
        # The newest PyTorch of build/torch, without the runtime that its libraries need.
        torch = f"{self.source}/build/torch/newest"
        lists += (f"target_include_directories({name}_headers SYSTEM INTERFACE {torch}/include)\n"
                  f"target_compile_features({name}_headers INTERFACE cxx_std_20)\n"
                  f"target_link_options({name}_headers INTERFACE LINKER:--unresolved-symbols=ignore-in-shared-libs)\n")
        libraries += [f"{torch}/libc10_cuda.so", f"{torch}/libc10.so"]
      if "<gtest/" in text:
        libraries += ["GTest::gtest_main"]
      lists += (f"add_executable({name} {name}.{block.kind.replace('cpp', 'cc')})\n"
                f"target_link_libraries({name} PRIVATE {' '.join(libraries)})\n"
                f"target_include_directories({name} PRIVATE {self.source})\n")
      if block.kind == "c":
        lists += f"set_target_properties({name} PROPERTIES LINKER_LANGUAGE CXX C_STANDARD 99 C_EXTENSIONS OFF)\n"
      else:
        # Statements that show a call need not use what it returns.
        lists += f"target_compile_options({name} PRIVATE -Wno-unused-variable -Wno-unused-but-set-variable)\n"
      self.snippets += 1
    if self.configure(folder, lists) and self.run(self.cmake, "--build", folder + "/build"):
      for name, path in programs:
        shutil.copy2(os.path.join(folder, "build", name), path)

  def configure_snippet(self, block):
    text = "\n".join(block.lines) + "\n"
    if block.file:
      path = os.path.join(self.scratch(block.page), block.file)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      with open(path, "w", encoding="utf-8") as file:
        file.write(text)
      return
    folder = os.path.join(self.work, "cmake", block.name.replace("/", "_").replace(":", "_"))
    os.makedirs(folder)
    with open(os.path.join(folder, "main.cc"), "w", encoding="utf-8") as file:
      file.write("int main() {}\n")
    self.snippets += 1
    self.configure(folder, "cmake_minimum_required(VERSION 3.25)\nproject(reader LANGUAGES CXX)\n"
                   f"add_executable(my_server main.cc)\n{text}", f"-DFETCHCONTENT_SOURCE_DIR_HBMPROF={self.source}")

  # --- Runs. ---

  def environment(self, scratch):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("HBMPROF") and name != "LD_PRELOAD"}
    environment.update(
        PATH=os.pathsep.join((os.path.dirname(self.tool()), self.no_make, environment.get("PATH", ""))), PWD=scratch,
        TERM="dumb",
        LC_ALL="C.UTF-8", TZ="UTC", XDG_CACHE_HOME=os.path.join(scratch, ".cache"), CC=self.cc, CXX=self.cxx,
        CMAKE_PREFIX_PATH=self.prefix, DEMO_IS_BUILT="1")
    return environment

  def run_page(self, page, blocks):
    """Runs the page's commands in one shell, and compares what they print."""
    scratch = self.scratch(page)
    commands = [command for block in blocks for command in block.commands()]
    script = START + "".join(RUN.format(command) for _, command, _ in commands)
    text = self.run_shell(page, ["bash", "-c", script], PAGE_SECONDS, cwd=scratch, env=self.environment(scratch))
    for path, shown in ((scratch, SHOWN_ROOT), (self.build, SHOWN_ROOT + "/build/release"), (self.source, SHOWN_ROOT)):
      text = text.replace(path, shown)
    self.check_output(page, commands, text)

  def main(self, only):
    check_compare()
    shutil.rmtree(self.work, ignore_errors=True)
    os.makedirs(self.work)
    if not self.make_pprof():
      print("docs_test: no pprof here: neither go nor google/pprof is installed")
      return 77
    self.hide_make()
    self.check_text()
    self.run(self.cmake, "--install", self.build, "--prefix", self.prefix)
    pages = only or self.pages
    for page in pages:
      self.make_clone(page)
    to_do = [block for block in self.blocks if block.page in pages and self.is_to_do(block)]
    self.build_snippets([block for block in to_do if block.kind in ("cpp", "c")])
    tasks = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
      for block in to_do:
        if block.kind == "cmake" and block.file:
          self.configure_snippet(block)
        elif block.kind == "cmake":
          tasks.append(workers.submit(self.configure_snippet, block))
      for page in pages:
        if blocks := [block for block in to_do if block.page == page and block.kind == "console"]:
          tasks.append(workers.submit(self.run_page, page, blocks))
    for task in tasks:
      task.result()

    for problem in self.problems:
      print(f"FAILED: {problem}\n")
    print(f"docs_test: {self.commands} commands run, {self.snippets} snippets built, {len(self.problems)} problems")
    print(f"docs_test: {len(self.not_run)} blocks are not tested here:")
    for block in self.not_run:
      print(f"  {block}")
    return 1 if self.problems else 0


class Machine(Pages):
  """The commands of a page on another machine."""

  def main(self, page, log, skipped, shell):
    commands, script = [], START
    for block in (block for block in self.blocks if block.page == page):
      if block.file:
        text = "".join(line + "\n" for line in block.lines)
        script += f"mkdir -p ./{os.path.dirname(block.file)}\ncat >{block.file} <<'HBMPROF_END'\n{text}HBMPROF_END\n"
      if block.kind != "console" or block.reason and not block.is_for_new_machine:
        continue
      chosen = [(line, command, output if output or not block.reason else None)
                for line, command, output in block.commands() if not command.startswith(skipped)]
      run = ""
      for index, (_, command, _) in enumerate(chosen):
        run += RUN.format(command)
        if not shows_status(chosen, index):
          run += "[[ $hbmprof_status == 0 ]] || exit 1\n"
      if block.needs and chosen:
        left_out = f"printf '\\n\\001docs_test {LEFT_OUT} %d\\n' $SECONDS\n" * len(chosen)
        run = f"if [[ -e {block.needs} || -e /usr/local/{block.needs} ]]; then\n{run}else\n{left_out}fi\n"
      script += run
      commands += chosen
    with open(log, "wb", buffering=0) as file:
      text = self.run_shell(page, [*shell, "bash", "-c", script], MACHINE_SECONDS, file)
    start = 0
    for (_, command, _), end in zip(commands, self.check_output(page, commands, text)):
      print(f"{end - start:6} s  $ {command}")
      start = end
    for problem in self.problems:
      print(f"FAILED: {problem}\n")
    print(f"{page}: {self.commands} commands run, {len(commands) - self.commands} not, {len(self.problems)} problems")
    return 1 if self.problems else 0


class Frameworks(Pages):
  """The commands that need a framework."""

  def main(self, framework, work):
    shutil.rmtree(work, ignore_errors=True)
    environment = {**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    for block in (block for block in self.blocks if block.framework == framework):
      folder = os.path.join(work, block.name.replace("/", "_").replace(":", "_"))
      os.makedirs(folder)
      for other in self.blocks:
        if other.page == block.page and other.kind == "python" and other.file:
          with open(os.path.join(folder, other.file), "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in other.lines))
      commands = [(line, command, output or None) for line, command, output in block.commands()]
      script = START + "".join(RUN.format(command) for _, command, _ in commands)
      text = self.run_shell(block.page, ["bash", "-c", script], PAGE_SECONDS, cwd=folder, env=environment)
      self.check_output(block.page, commands, text.replace(folder, SHOWN_ROOT))
    for problem in self.problems:
      print(f"FAILED: {problem}\n")
    print(f"{framework}: {self.commands} commands of the pages run, {len(self.problems)} problems")
    return 1 if self.problems or not self.commands else 0


def machine_main(page, log, *rest):
  end = rest.index("--")
  return Machine(os.getcwd()).main(page, log, rest[1:end:2], rest[end + 1:])


if __name__ == "__main__":
  if sys.argv[1:2] == ["--machine"]:
    sys.exit(machine_main(*sys.argv[2:]))
  if sys.argv[1:2] == ["--framework"]:
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(Frameworks(source).main(sys.argv[2], os.path.abspath(sys.argv[3])))
  if len(sys.argv) < 7:
    sys.exit(__doc__)
  sys.exit(Test(*(os.path.abspath(argument) for argument in sys.argv[1:4]), *sys.argv[4:7]).main(sys.argv[7:]))
