"""Writes the metadata of the installed Python package from pyproject.toml. usage: metadata.py FOLDER VERSION"""
import pathlib
import sys
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
folder = pathlib.Path(sys.argv[1], f"hbmprof-{sys.argv[2]}.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: hbmprof\nVersion: {sys.argv[2]}\nSummary: {project['description']}\n")
(folder / "entry_points.txt").write_text("\n".join(
    f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    for group, points in project["entry-points"].items()))
