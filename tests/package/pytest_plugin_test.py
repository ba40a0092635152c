"""Runs pytest with hbmprof's plugin under `hbmprof run`: a test that leaks fails, one that does not passes."""
import pathlib
import subprocess
import sys
import tempfile

CONFTEST = '''
def pytest_runtest_call(item):
    if "repeated" in item.name:
        item.runtest()  # pytest runs it once; this is a second run, as plugins for unstable tests make it
'''

TESTS = '''
import ctypes
import inspect

import pytest

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0


def allocate(size):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


@pytest.mark.hbmprof_leak_check
def test_frees():
    assert cuda.cuMemFree_v2(allocate(512)) == 0


@pytest.mark.hbmprof_leak_check
def test_leaks():
    allocate(4321)


@pytest.mark.hbmprof_leak_check(max_bytes=1000)
def test_has_a_cache():
    allocate(999)


@pytest.mark.hbmprof_leak_check
def test_that_is_repeated_is_checked_once():
    assert sum(frame.function == "checked" for frame in inspect.stack()) == 1


def test_is_not_checked():
    allocate(100)
'''


def main():
    try:
        import pytest  # noqa: F401
    except ImportError:
        print("pytest is not installed (PyPI has it), so its plugin was not tested")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "conftest.py").write_text(CONFTEST)
        pathlib.Path(folder, "test_cache.py").write_text(TESTS)
        result = subprocess.run(
            ["hbmprof", "run", "--output", folder, "--", sys.executable, "-m", "pytest", "-p", "hbmprof.pytest_plugin",
             "-p", "no:cacheprovider", "--strict-markers", "test_cache.py"],
            cwd=folder, capture_output=True, text=True, check=False)
    print(result.stdout, result.stderr)
    assert result.returncode == 1, result.returncode
    assert "1 failed, 4 passed" in result.stdout
    assert "FAILED test_cache.py::test_leaks" in result.stdout
    assert "hbmprof.LeakError: 4321 bytes of device memory" in result.stdout
    return 0


sys.exit(main())
