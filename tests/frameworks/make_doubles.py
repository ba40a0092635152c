#!/usr/bin/env python3
"""Makes doubles of NVIDIA's and Huawei's libraries for a framework that is installed without them.

usage: make_doubles.py OUT BUILD FOLDER...

FOLDER: with a framework's Python packages. OUT: gets one library for each that a library in a FOLDER needs and that is
not there, with the functions that these libraries import, under the versions that they ask for, and with those that
XLA's plugin looks up by name; nothing of the vendors' is read. Functions of libcudart come from
tests/support/torch_cudart, a few of cuBLAS and cuDNN from libraries.cc, and of libascendcl from cann.cc; every other
one is a stub: it returns 0, and when it is called first, adds its name to the file that the environment variable
DOUBLES_CALLS names. BUILD: with the substitute drivers. Prints the number of functions of each library; OUT/stubs.txt
lists the stubs. OUT/option_keys.so is for torch_npu (option_keys.cc).
"""
import collections
import pathlib
import re
import subprocess
import sys

# Libraries of NVIDIA's, without the driver's, and of CANN, and their functions.
CANN_LIBRARY = r"(acl|ascend|atb|fmk_|ge_runner|graph\.|hccl)"
CANN_FUNCTION = re.compile(r"^(acl|Hccl|Msprof|rt)[a-zA-Z]")
LIBRARY = re.compile(r"^lib(cu(?!da\.)|nccl|nvrtc|nvshmem|nvJitLink|" + CANN_LIBRARY + ")")
FUNCTION = re.compile(r"^(__cuda|cu|nccl|nvrtc|nvshmem|nvJitLink)|" + CANN_FUNCTION.pattern)
STUBS = """
#include <stdio.h>
#include <stdlib.h>
static void note(const char* name) {
  const char* path = getenv("DOUBLES_CALLS");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (file == NULL) return;
  fprintf(file, "%s\\n", name);
  fclose(file);
}
#define STUB(name) \\
  int name(void) { \\
    static int is_noted; \\
    if (!is_noted++) note(#name); \\
    return 0; \\
  }
"""
# The libraries that XLA's plugin, TensorFlow, ONNX Runtime and torch_npu open.
CUDA_12 = ["libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libcufft.so.11", "libcupti.so.12",
           "libcusolver.so.11", "libcusparse.so.12", "libnccl.so.2", "libnvJitLink.so.12", "libnvrtc.so.12"]
CUDA_13 = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcupti.so.13",
           "libcusolver.so.12", "libcusparse.so.12", "libnccl.so.2", "libnvJitLink.so.13", "libnvrtc.so.13"]
OPENED = {"xla_cuda_plugin.so": CUDA_13, "libonnxruntime_providers_cuda.so": CUDA_13, "libtensorflow_cc.so.2": CUDA_12,
          "libtensorflow_framework.so.2": CUDA_12, "libtorch_npu.so": ["libascendcl.so"]}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def owner_of(name, version, versions, missing):
    """Returns the library of a function: the one with its version, else the one with the longest name that the function
    begins with; None if it is of a library that is there."""
    if version:
        return versions.get(version)
    if CANN_FUNCTION.match(name):
        return "libascendcl.so" if "libascendcl.so" in missing else None
    names = {library[3:].split(".")[0].split("_")[0].removesuffix("rt").lower(): library for library in missing}
    matching = [start for start in names if name.lower().startswith(start)]
    return names[max(matching, key=len)] if matching else None


def needed_and_missing(library, present):
    """Returns NVIDIA's libraries that a library needs and that are not present."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", "--wide", library))
    return [name for name in needed if LIBRARY.match(name) and name not in present]


def read_imports(library, missing, others, functions):
    """Adds the functions that a library imports from the libraries `missing`, which it needs, and those without a version
    that it imports from `others`, which come with another library that it needs."""
    for name in missing:
        functions[name]  # also if nothing of it is imported
    if not missing:
        return
    versions, owner = {}, None
    for match in re.finditer(r"File: (\S+)|Name: (\S+)", output("readelf", "--version-info", "--wide", library)):
        owner = match[1] or owner
        if match[2]:
            versions[match[2]] = owner
    for line in output("nm", "--dynamic", "--undefined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if not FUNCTION.match(name):
            continue
        owner = owner_of(name, version, versions, missing) or owner_of(name, version, versions, others)
        if owner in others:
            functions[owner][name] = version or functions[owner].get(name)


def read_names(library, functions):
    """Adds the functions whose names are strings in a library."""
    for name in set(re.findall(rb"\0((?:cu|nccl|nvrtc|nvJitLink|acl(?!nn)|Hccl)[a-zA-Z]\w+)(?=\0)", library.read_bytes())):
        owner = owner_of(name.decode(), None, {}, OPENED[library.name])
        if owner:
            functions[owner].setdefault(name.decode(), None)


def is_library(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def wanted(folders):
    """Returns the functions of each library that is missing in its package: {library: {name: version or None}}."""
    functions = collections.defaultdict(dict)
    for folder in folders:
        packages = collections.defaultdict(list)
        for path in folder.rglob("*.so*"):
            if path.is_file() and is_library(path):
                packages[path.relative_to(folder).parts[0].removesuffix(".libs")].append(path)
        missing = {library: needed_and_missing(library, {path.name for path in libraries})
                   for libraries in packages.values() for library in libraries}
        others = sorted(set().union(*missing.values()))
        for libraries in packages.values():
            for library in libraries:
                read_imports(library, missing[library], others, functions)
                if library.name in OPENED:
                    read_names(library, functions)
    return functions


def defined(object_file):
    return {line.split()[-1] for line in output("nm", "--defined-only", "--extern-only", object_file).splitlines()}


def compile_object(source, path, *flags):
    subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", *flags, "-c", source, "-o", path], check=True)


def compile_library(path, objects, *options):
    subprocess.run(["g++", "-shared", "-o", path, *objects, *options, "-ldl"], check=True)


def main(out, build, *folders):
    out.mkdir(parents=True, exist_ok=True)
    here = pathlib.Path(__file__).resolve().parent
    sources = here.parent.parent
    support = build / "tests/support"
    listing = []
    compile_object(here / "libraries.cc", out / "libraries.o")
    found = wanted(folders)
    for library, functions in sorted(found.items()):
        objects, base = [out / "libraries.o"], out / library
        driver = [f"-L{support}/fake_cudart/cuda_calls", "-l:libcuda.so.1"]
        if library.startswith("libcudart"):
            compile_object(sources / "tests/support/torch_cudart/torch_cudart.cc", out / "cudart.o", f"-I{sources}",
                           f"-DCUDART_MAJOR={library.rsplit('.', 1)[1]}")
            objects = [out / "cudart.o"]
        if re.match(f"lib{CANN_LIBRARY}", library):
            objects, driver = [], []
        if library == "libascendcl.so":
            compile_object(here / "cann.cc", out / "cann.o")
            objects, driver = [out / "cann.o"], [f"-L{support}/fake_vendors/hal", "-lascend_hal"]
        stubs = sorted(set(functions) - set().union(*map(defined, objects)))
        listing += [f"{library} {name}" for name in stubs]
        base.with_suffix(".c").write_text(STUBS + "".join(f"STUB({name})\n" for name in stubs))
        versions = {version for version in functions.values() if version}
        base.with_suffix(".map").write_text("".join(f"{version} {{ global: *; }};\n" for version in sorted(versions)))
        script = [f"-Wl,--version-script={base.with_suffix('.map')}"] if versions else []
        subprocess.run(["gcc", "-O1", "-fPIC", "-w", "-c", base.with_suffix(".c"), "-o", base.with_suffix(".o")],
                       check=True)
        compile_library(base, [base.with_suffix(".o"), *objects], f"-Wl,-soname,{library}", *script, *driver)
        print(f"{library}: {len(functions)} functions, {len(stubs)} of them stubs")
    if "libascendcl.so" in found:
        compile_object(here / "option_keys.cc", out / "option_keys.o")
        compile_library(out / "option_keys.so", [out / "option_keys.o"])
    (out / "stubs.txt").write_text("\n".join(listing) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*map(pathlib.Path, sys.argv[1:]))
