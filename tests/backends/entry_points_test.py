#!/usr/bin/env python3
"""Shows that each function of CUDA's driver, HIP, PJRT and OpenCL is tracked, passed through, or known as irrelevant.

usage: entry_points_test.py Cuda|Hip|Pjrt|Opencl REPOSITORY COMPILER HEADER
Reads the newest header at hand: HEADER, or for CUDA the one that scripts/test.sh installs into build/pypi if that is
newer. For CUDA also reads the driver's other headers: those for OpenGL, VDPAU, EGL and the profiler. Without a header
the exit code is 77, if all else is well.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = COMPILER = HEADER = ""
NO_HEADER = 77


def read(path):
  with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
    return file.read()


class Irrelevant:
  """The names and families of a list such as cuda_entry_points.txt."""

  def __init__(self, path):
    self.names, self.families, self.undeclared, self.newest = set(), set(), set(), 0
    for line in read(path).splitlines():
      if line.startswith("header "):
        self.newest = int(line.split()[1])
      elif line.startswith("undeclared "):
        self.undeclared.update(line.split()[1:])
      elif line and line[0] not in "#=":
        for word in line.split():
          (self.families if word.endswith("*") else self.names).add(word.rstrip("*"))

  def family_of(self, name):
    return next((family for family in self.families if name.startswith(family)), None)


def words(name):
  """cuMemAllocAsync_v2 -> Mem, Alloc, Async, v2."""
  return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|[a-z]+\d*|\d+", name)


def unclassified(functions, handled, irrelevant, looks_like_memory, base_of):
  """What is wrong with the lists, for {name: parameters}: a line for each function."""
  problems = []
  for name, parameters in sorted(functions.items()):
    if name in handled or name in irrelevant.names or base_of(name) in irrelevant.names:
      continue
    family = irrelevant.family_of(name)
    if family is None:
      problems.append(f"{name}({parameters}) is in no list")
    elif why := looks_like_memory(name, parameters):
      problems.append(f"{name}({parameters}) is of the family {family}*, but {why}: put it into a list by its name")
  return problems


def stale(functions, irrelevant, base_of):
  known = {base_of(name) for name in functions} | set(functions)
  problems = [f"{name} is no function" for name in irrelevant.names if name not in known]
  return problems + [f"no function is of the family {family}*" for family in irrelevant.families
                     if not any(name.startswith(family) for name in functions)]


exit_code = 0


def no_header(name):
  global exit_code
  exit_code = NO_HEADER
  return f"there is no {name}"


def complain(test, problems):
  if problems:
    test.fail("\n".join([f"{len(problems)} problems:"] + problems))


# What brings memory, or an object that can hold some, or ends it.
BEGINS = {"Alloc", "Allocate", "Malloc", "Create", "Import", "Open", "Load", "Map", "Reserve", "Register", "Retain",
          "Instantiate"}
ENDS = {"Free", "Destroy", "Release", "Unmap", "Unload", "Unregister", "Reset", "Trim", "Detach"}


# --- CUDA. ---

CUDA_HEADERS = ["cuda.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h", "cudaProfiler.h"]
# Headers of other libraries that these include. The functions can be read without them.
FOREIGN_HEADERS = ["GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h"]


def cuda_headers():
  """The version of the newest cuda.h, and for each of CUDA_HEADERS that is at hand the path of the newest one."""
  at_hand = glob.glob(os.path.join(REPOSITORY, "build/pypi/nvidia/cu[0-9]*/include/cuda.h"))
  versions = []
  for path in filter(os.path.exists, at_hand + [HEADER]):
    with open(path, encoding="utf-8") as file:
      versions.append((int(re.search(r"#define\s+CUDA_VERSION\s+(\d+)", file.read()).group(1)), os.path.dirname(path)))
  versions.sort(reverse=True)
  headers = {}
  for _, folder in versions:
    for name in CUDA_HEADERS:
      if os.path.exists(os.path.join(folder, name)):
        headers.setdefault(name, os.path.join(folder, name))
  return versions[0][0] if versions else 0, headers


def preprocessed(headers):
  """The text of all variants of all names. The first header's folder has the files that the others include."""
  with tempfile.TemporaryDirectory() as folder:
    for name in FOREIGN_HEADERS:
      os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
      with open(os.path.join(folder, name), "w", encoding="utf-8"):
        pass
    command = [COMPILER, "-E", "-P", "-x", "c++", "-D__CUDA_API_VERSION_INTERNAL", "-I" + os.path.dirname(headers[0]),
               "-I" + folder, "-"]
    includes = "".join(f'#include "{path}"\n' for path in headers)
    return subprocess.run(command, check=True, input=includes, capture_output=True, text=True).stdout


def cuda_functions(text):
  """The functions that preprocessed text declares."""
  declarations = re.finditer(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*?)\)\s*(?:__attribute__\s*\(\(.*?\)\))?\s*;", text,
                             re.DOTALL)
  return {match.group(1): " ".join(match.group(2).split()) for match in declarations}


def cuda_base(name):
  """A NOT_WRAPPED or irrelevant function's variants for the per-thread default stream are what it is."""
  return re.sub(r"_pt[sd][sz]$", "", name)


# Types of which a function may give one out, and types that say so inside of a structure.
CUDA_OUT = re.compile(r"(?<!const )\b(CUdeviceptr|CUdeviceptr_v1|CUmemGenericAllocationHandle|CUarray|CUmipmappedArray|"
                      r"CUmemoryPool|CUexternalMemory|CUmodule|CUlibrary|CUcontext|CUgreenCtx|CUgraph|CUgraphExec|"
                      r"CUlogicalEndpointId)\s*\*(?!\s*const)|\bvoid\s*\*\s*\*")
CUDA_STRUCTURE = re.compile(r"(?<!const )\b\w*(?:params|desc|prop|descriptor)\w*\s*\*", re.IGNORECASE)
CUDA_SIZE = re.compile(r"\b(?:size_t|cuuint64_t|unsigned long long|unsigned int)\s+(?:bytesize|bytes|size|length)\b",
                       re.IGNORECASE)


def cuda_memory(name, parameters):
  is_question = "Get" in words(name)
  verbs = (BEGINS | ENDS).intersection(words(name))
  if CUDA_OUT.search(parameters):
    return f"it may give out {CUDA_OUT.search(parameters).group(0)}"
  if CUDA_SIZE.search(parameters):
    return f"it takes a size ({CUDA_SIZE.search(parameters).group(0)})"
  if verbs and not is_question:
    return f"its name has the word {min(verbs)}"
  structure = CUDA_STRUCTURE.search(parameters)
  if structure and not is_question and "SetParams" not in name:
    return f"it may give something out in {structure.group(0)}"
  return ""


class Cuda(unittest.TestCase):

  def setUp(self):
    self.irrelevant = Irrelevant("tests/backends/cuda_entry_points.txt")
    calls = read("src/backends/cuda/driver/driver_calls.inc")
    self.tracked = set(re.findall(r"^CALL\((\w+),", calls, re.MULTILINE))
    self.passed = set(re.findall(r"^NOT_WRAPPED\((\w+),", calls, re.MULTILINE))

  def problems(self, functions):
    handled = self.tracked | {name for name in functions if name in self.passed or cuda_base(name) in self.passed}
    return unclassified(functions, handled, self.irrelevant, cuda_memory, cuda_base)

  def functions_of_newest_headers(self):
    version, headers = cuda_headers()
    if "cuda.h" not in headers:
      self.skipTest(no_header("cuda.h"))
    print(f"cuda.h of version {version}:", *headers.values())
    return version, headers, cuda_functions(preprocessed(list(headers.values())))

  def test_every_function_of_the_newest_headers_is_classified(self):
    version, headers, functions = self.functions_of_newest_headers()
    self.assertGreater(len(functions), 600)
    complain(self, self.problems(functions))

  def test_the_lists_name_functions_that_there_are(self):
    version, headers, functions = self.functions_of_newest_headers()
    if version < self.irrelevant.newest:
      self.skipTest(f"the lists are for cuda.h of {self.irrelevant.newest}")
    for name in CUDA_HEADERS:
      if name not in headers:
        self.skipTest(no_header(name))
    complain(self, stale(functions, self.irrelevant, cuda_base))
    self.assertEqual((self.tracked | self.passed) - set(functions), set())
    self.assertEqual(self.irrelevant.names & (self.tracked | self.passed), set())
    self.assertEqual(self.irrelevant.undeclared & set(functions), set(), "a header declares them now")

  def test_the_headers_declare_what_the_real_drivers_export(self):
    version, headers, functions = self.functions_of_newest_headers()
    drivers = glob.glob(os.path.join(REPOSITORY, "build/driver/*/libcuda.so.1"))
    if not drivers or len(headers) < len(CUDA_HEADERS):
      self.skipTest("there are no real driver libraries" if not drivers else no_header("header of the profiler"))
    for path in drivers:
      symbols = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
      exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
      unknown = {name for name in exported if re.match("cu[A-Z]", name)} - set(functions) - self.irrelevant.undeclared
      self.assertEqual(unknown, set(), path)
      self.assertGreater(len(exported), 200, path)

  def test_a_new_function_that_makes_or_ends_memory_hides_in_no_family(self):
    text = """
      CUresult cuStreamNewBuffer(CUdeviceptr *dptr, CUstream hStream);
      CUresult cuMemcpyToNew_ptsz(void **pp, const void *src, size_t n, CUstream hStream);
      CUresult cuEventRecordHeap(CUevent hEvent, size_t bytesize);
      CUresult cuMemsetAllocAsync(CUdeviceptr dptr, CUstream hStream);
      CUresult cuGraphGetBuffer(CUgraph hGraph, CUdeviceptr *dptr_out);
      CUresult cuGraphKernelNodeAddMemory(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params);
      CUresult cuTexRefFree(CUtexref hTexRef);
      CUresult cuOccupancyArray(CUarray *pHandle, int blocks);
      CUresult cuVirtualThing(int flags);
      CUresult cuMemAllocAsync_v2(CUdeviceptr *dptr, size_t bytesize, CUstream hStream);
      CUresult cuMemFree_v2_ptsz(CUdeviceptr dptr);
    """
    functions = cuda_functions(text)
    self.assertEqual(len(functions), 11)
    self.assertEqual(len(self.problems(functions)), 11, "\n".join(self.problems(functions)))

  def test_a_new_function_of_an_irrelevant_family_needs_no_line(self):
    text = """
      CUresult cuMemcpyHtoD_v3(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount);
      CUresult cuStreamWaitValue128(CUstream stream, CUdeviceptr addr, const void *value, unsigned int flags);
      CUresult cuDeviceGetColor(int *color, CUdevice dev);
      CUresult cuGraphNodeGetColor(CUgraphNode node, int *color);
    """
    functions = cuda_functions(text)
    self.assertEqual(len(functions), 4)
    self.assertEqual(self.problems(functions), [])


# --- HIP: as AMD's bindings for Python declare it. ---

def hip_memory(name, parameters):
  verbs = (BEGINS | ENDS).intersection(words(name))
  return f"its name has the word {min(verbs)}" if verbs else ""


class Hip(unittest.TestCase):

  def setUp(self):
    self.irrelevant = Irrelevant("tests/backends/hip_entry_points.txt")
    self.calls = read("src/backends/hip/hip_calls.inc")
    self.handled = set(re.findall(r"^(?:CALL|NOT_WRAPPED)\((\w+)", self.calls, re.MULTILINE))

  def problems(self, functions):
    handled = self.handled | {name + "_spt" for name in self.handled}
    return unclassified(functions, handled, self.irrelevant, hip_memory, lambda name: re.sub("_spt$", "", name))

  def test_every_function_of_the_bindings_is_classified(self):
    if not os.path.exists(HEADER):
      self.skipTest(no_header("cyhip.pxd"))
    with open(HEADER, encoding="utf-8") as file:
      found = re.findall(r"\bhipError_t\s+(hip\w+)\s*\(([^)]*)\)", file.read())
    functions = {name: " ".join(parameters.split()) for name, parameters in found}
    self.assertGreater(len(functions), 500)
    complain(self, self.problems(functions) + stale(functions, self.irrelevant, lambda name: name))
    self.assertEqual(self.handled - set(functions), set())
    for name, parameters in re.findall(r"^(?:CALL|QUERY)\((\w+), \((.*?)\), ", self.calls.replace("\n     ", " "),
                                       re.MULTILINE):
      self.assertEqual(parameters.count(","), functions[name].count(","), name)

  def test_a_new_function_that_makes_memory_hides_in_no_family(self):
    functions = dict.fromkeys(["hipMemReserveNew", "hipStreamMallocNew", "hipGraphFreeMemory", "hipNew"], "")
    self.assertEqual(len(self.problems(functions)), 4)


# --- PJRT. ---

def pjrt_functions(text):
  """The table's functions, each with the fields that it fills in: {name: fields}."""
  text = re.sub(r"//(?!\s*out\b)[^\n]*", "", text)
  functions = {}
  for name in re.findall(r"_PJRT_API_STRUCT_FIELD\((PJRT_\w+)\);", text):
    arguments = re.search(r"struct " + name + r"_Args \{(.*?)\n\s*\};", text, re.DOTALL)
    out = re.findall(r"([^;{}/]*?);[ \t]*// out", arguments.group(1)) if arguments else []
    functions[name] = "; ".join(" ".join(field.split()) for field in out)
  return functions


PJRT_OUT = re.compile(r"\bPJRT_(Client|Buffer|LoadedExecutable|Executable|AsyncHostToDeviceTransferManager|"
                      r"FulfillAliasBufferCallback)\s*\*")


PJRT_VERBS = {"Delete", "Copy", "Execute", "Compile", "Deserialize", "Alias", "Donate"}


def pjrt_memory(name, out):
  method = name.split("_", 2)[-1]  # of PJRT_Buffer_Delete: Delete
  verbs = (BEGINS | ENDS | PJRT_VERBS).intersection(words(method))
  if PJRT_OUT.search(out):
    return f"it gives out {PJRT_OUT.search(out).group(0)}"
  return f"its name has the word {min(verbs)}" if verbs else ""


class Pjrt(unittest.TestCase):

  def setUp(self):
    self.irrelevant = Irrelevant("tests/backends/pjrt_entry_points.txt")
    ours = dict(re.findall(r"SAME_SLOT\((k\w+), (PJRT_\w+)\)", read("tests/backends/pjrt_abi_test.cc")))
    hooked = re.findall(r"^    \{(k\w+), &Run<", read("src/backends/pjrt/hooks.cc"), re.MULTILINE)
    self.assertEqual(set(hooked) - set(ours), set(), "hooks whose slot pjrt_abi_test.cc does not check")
    self.tracked = {ours[slot] for slot in hooked}

  def problems(self, functions):
    return unclassified(functions, self.tracked, self.irrelevant, pjrt_memory, lambda name: name)

  def functions_of_newest_header(self):
    if not os.path.exists(HEADER):
      self.skipTest(no_header("pjrt_c_api.h"))
    with open(HEADER, encoding="utf-8") as file:
      text = file.read()
    version = int(re.search(r"#define\s+PJRT_API_MINOR\s+(\d+)", text).group(1))
    print(f"pjrt_c_api.h of version 0.{version}: {HEADER}")
    return version, pjrt_functions(text)

  def test_every_function_of_the_table_is_classified(self):
    version, functions = self.functions_of_newest_header()
    self.assertGreater(len(functions), 100)
    complain(self, self.problems(functions))

  def test_the_lists_name_functions_that_there_are(self):
    version, functions = self.functions_of_newest_header()
    if version < self.irrelevant.newest:
      self.skipTest(f"the lists are for pjrt_c_api.h of 0.{self.irrelevant.newest}")
    complain(self, stale(functions, self.irrelevant, lambda name: name))
    self.assertEqual(self.irrelevant.names & self.tracked, set())

  def test_a_new_function_that_makes_or_ends_memory_hides_in_no_family(self):
    text = """
      struct PJRT_Event_Buffer_Args {
        size_t struct_size;
        PJRT_Event* event;
        PJRT_Buffer* buffer;  // out
      };
      struct PJRT_Memory_Allocate_Args {
        size_t struct_size;
        void* memory;  // out
      };
      struct PJRT_Device_Free_Args {
        size_t struct_size;
        PJRT_Device* device;
      };
      struct PJRT_Raw_Thing_Args {
        size_t struct_size;
      };
      _PJRT_API_STRUCT_FIELD(PJRT_Event_Buffer);
      _PJRT_API_STRUCT_FIELD(PJRT_Memory_Allocate);
      _PJRT_API_STRUCT_FIELD(PJRT_Device_Free);
      _PJRT_API_STRUCT_FIELD(PJRT_Raw_Thing);
    """
    functions = pjrt_functions(text)
    self.assertEqual(functions["PJRT_Event_Buffer"], "PJRT_Buffer* buffer")
    self.assertEqual(len(self.problems(functions)), 4, "\n".join(self.problems(functions)))


# --- OpenCL. ---

def opencl_functions(table, extensions):
  """The functions of the dispatch table (cl_icd.h), and the extensions with a type (cl_ext.h)."""
  table = table[table.index("typedef struct _cl_icd_dispatch {"):table.index("} cl_icd_dispatch;")]
  names = re.findall(r"\b(cl[A-Z]\w+)\s*;", table) + re.findall(r"\b(cl[A-Z]\w+)_fn\)", extensions)
  return {name: "" for name in names}


def opencl_memory(name, parameters):
  verbs = re.findall("Create|Alloc|Free|Import", name)
  return f"its name has the word {verbs[0]}" if verbs else ""


class Opencl(unittest.TestCase):

  def setUp(self):
    self.irrelevant = Irrelevant("tests/backends/opencl_entry_points.txt")
    self.tracked = set(re.findall(r"^[A-Z]+\([A-Z]+, (cl\w+)", read("src/backends/opencl/calls.inc"), re.MULTILINE))

  def problems(self, functions):
    return unclassified(functions, self.tracked, self.irrelevant, opencl_memory, lambda name: name)

  def test_every_function_of_the_headers_is_classified(self):
    if not os.path.exists(HEADER):
      self.skipTest(no_header("cl_icd.h"))
    with open(HEADER, encoding="utf-8") as table, open(os.path.dirname(HEADER) + "/cl_ext.h", encoding="utf-8") as more:
      functions = opencl_functions(table.read(), more.read())
    self.assertGreater(len(functions), 190)
    complain(self, self.problems(functions) + stale(functions, self.irrelevant, lambda name: name))
    self.assertEqual(self.tracked - set(functions), set())

  def test_a_new_function_that_makes_memory_hides_in_no_family(self):
    functions = dict.fromkeys(["clEnqueueAllocKHR", "clGetNewBufferFreeKHR", "clCreateTensor", "clSetImportKHR"], "")
    self.assertEqual(len(self.problems(functions)), 4)


if __name__ == "__main__":
  suite, REPOSITORY, COMPILER, HEADER = sys.argv[1:5]
  result = unittest.main(argv=[sys.argv[0], suite], verbosity=2, exit=False).result
  sys.exit(exit_code if result.wasSuccessful() else 1)
