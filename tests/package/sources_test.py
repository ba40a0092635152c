"""Checks that the sdist and the Conan package contain the files that cmake/hbmprof_install.cmake installs.

usage: sources_test.py SOURCE
"""
import fnmatch
import pathlib
import re
import sys
import tomllib

source = pathlib.Path(sys.argv[1])
excluded = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]["exclude"]
conan = re.search(r"^SOURCES = (\[[^]]*\])", (source / "deploy/conan/conanfile.py").read_text(), re.MULTILINE).group(1)
conan = re.findall(r'"([^"]+)"', conan)


def in_sdist(path):
  """As git reads .gitignore: the last pattern that matches decides, and nothing below an excluded folder is included."""
  parts = path.split("/")
  for count in range(1, len(parts) + 1):
    name = "/" + "/".join(parts[:count])
    matching = [pattern for pattern in excluded
                if pattern.count("/") == count and fnmatch.fnmatchcase(name, pattern.lstrip("!"))]
    if matching and not matching[-1].startswith("!"):
      return False
  return True


names = []
text = (source / "cmake/hbmprof_install.cmake").read_text()
for arguments in re.findall(r"install\((?:FILES|DIRECTORY) (.*?) DESTINATION", text, re.DOTALL):
  names += [name for name in arguments.split() if "$" not in name]
assert {"LICENSE", "deploy/grafana", "cmake/FindLibElf.cmake"} <= set(names), names
files = [str(file.relative_to(source)) for name in names
         for file in ([source / name] if (source / name).is_file() else (source / name).rglob("*")) if file.is_file()]
missing = [f"sdist: {file}" for file in files if not in_sdist(file)]
missing += [f"Conan: {file}" for file in files if not any(fnmatch.fnmatchcase(file, pattern) for pattern in conan)]
assert not in_sdist("tests/CMakeLists.txt") and not in_sdist("docs/install.md")
sys.exit("\n".join(missing) or 0)
