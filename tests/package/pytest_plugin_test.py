"""Runs pytest with hbmprof's plugin under `hbmprof run`: a test that leaks fails, one that does not passes."""
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

CONFTEST = '''
def pytest_runtest_call(item):
    if "repeated" in item.name:
        item.runtest()  # pytest runs it once; this is a second run, as plugins for unstable tests make it
'''

TESTS = '''
import ctypes
import inspect
import unittest

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


def cache():
    return allocate(3 << 20)


def work():
    kept = cache()
    assert cuda.cuMemFree_v2(kept) == 0


@pytest.mark.hbmprof(peak="2GiB", leak="0")
def test_within_both_limits():
    work()


@pytest.mark.hbmprof(peak="2MiB", leak="0")
def test_exceeds_the_peak():
    work()


@pytest.mark.hbmprof(peak=4 << 20, leak="1KiB")
def test_leaks_beyond_a_limit():
    allocate(2222)


@pytest.mark.hbmprof(peak="1MiB")
def test_peak_is_beyond_the_start():  # 6,000 bytes and more are in use already
    assert cuda.cuMemFree_v2(allocate(1 << 20)) == 0


@pytest.mark.hbmprof(budget="memory.budget", leak="0")
def test_keeps_its_budget():
    work()


@pytest.mark.hbmprof(budget="small.budget")
def test_exceeds_its_budget():
    work()


@pytest.mark.hbmprof(budget="none.budget")
def test_has_no_budget():
    work()


@pytest.mark.hbmprof(peak="1GiB", budget="memory.budget")
def test_has_a_peak_and_a_budget():
    pass


@pytest.mark.hbmprof(peak="1KiB", leak="0")
def test_fails_by_itself():
    cache()
    assert False, "its own failure"


@pytest.mark.hbmprof(peak="much")
def test_has_a_bad_limit():
    pass


@pytest.mark.hbmprof("2GiB")
def test_has_a_bad_mark():
    pass


@pytest.mark.hbmprof_leak_check(most=1)
def test_has_an_unknown_argument():
    pass


@pytest.mark.hbmprof(leak="0", peak="2GiB")
class TestClass:
    @pytest.mark.hbmprof(peak="1GiB")
    def test_leaks_beyond_the_limit_of_its_class(self):
        allocate(5555)

    @pytest.mark.hbmprof(leak="1KiB")
    def test_has_a_limit_of_its_own(self):
        allocate(555)


@pytest.mark.hbmprof(leak="0")
class Case(unittest.TestCase):
    def setUp(self):
        self.kept = allocate(100)

    def tearDown(self):
        assert cuda.cuMemFree_v2(self.kept) == 0

    def test_case_frees(self):
        pass

    def test_case_leaks(self):
        allocate(6666)

    def test_case_fails_by_itself(self):
        allocate(10)
        self.fail("the failure of a case")


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    @pytest.mark.hbmprof(peak="1KiB")
    async def test_case_exceeds_the_peak(self):
        work()
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
        pathlib.Path(folder, "memory.budget").write_text("total 16MiB\n3MiB allocate < cache < work\n")
        pathlib.Path(folder, "small.budget").write_text("total 16MiB\n1MiB allocate < cache < work\n")
        result = subprocess.run(
            ["hbmprof", "run", "--output", folder, "--", sys.executable, "-m", "pytest", "-p", "hbmprof.pytest_plugin",
             "-p", "no:cacheprovider", "--strict-markers", "--junitxml=junit.xml", "test_cache.py"],
            cwd=folder, capture_output=True, text=True, check=False)
        junit = xml.etree.ElementTree.parse(pathlib.Path(folder, "junit.xml"))
    print(result.stdout, result.stderr)
    assert result.returncode == 1, result.returncode
    assert "14 failed, 9 passed" in result.stdout
    assert "FAILED test_cache.py::test_leaks" in result.stdout
    assert "\nLeakError: 4321 bytes of device memory" in result.stdout

    # What a reader of JUnit's format shows: the message, and the text with the call stacks.
    failures = {case.get("name"): (failure.get("message"), failure.text)
                for case in junit.iter("testcase") for failure in case.iter("failure")}
    message, text = failures["test_exceeds_the_peak"]
    assert message.startswith("Failed: PeakError: the block used 3145728 bytes of GPU:0 at its peak, more than 2097152 (in use "), message
    # The call tree begins at the test.
    assert re.search(r" where\n.* test_exceeds_the_peak +\S+test_cache.py:\d+\n.* work .*\n.* cache .*\n.* \+3145728 B +allocate ",
                     message), message
    assert text in message, text
    message, _ = failures["test_exceeds_its_budget"]
    assert message.startswith("Failed: PeakError: the block exceeds small.budget:\n"), message
    assert re.search(r"\+2\.0\d MiB +3\.0\d MiB +1\.00 MiB +OVER +allocate +\S+test_cache.py:\d+\n", message), message
    assert "hbmprof.Error: hbmprof.budget_check: " in failures["test_has_no_budget"][0] and "none.budget" in failures["test_has_no_budget"][0]
    assert "either a peak or a budget" in failures["test_has_a_peak_and_a_budget"][0]
    message, _ = failures["test_leaks_beyond_a_limit"]
    assert message.startswith("Failed: LeakError: 2222 bytes of device memory") and " test_leaks_beyond_a_limit " in message, message
    assert "its own failure" in failures["test_fails_by_itself"][0]
    assert 'ValueError: hbmprof.peak_check: max_bytes is \'much\'' in failures["test_has_a_bad_limit"][0]
    assert "write the mark as hbmprof(peak=" in failures["test_has_a_bad_mark"][0]
    assert "unexpected keyword argument 'most'" in failures["test_has_an_unknown_argument"][0]
    for test, start in {"test_leaks_beyond_the_limit_of_its_class": "LeakError: 5555 bytes", "test_case_leaks": "LeakError: 6666 bytes",
                        "test_case_exceeds_the_peak": "PeakError: the block used 3145728 bytes"}.items():
        assert failures[test][0].startswith("Failed: " + start), failures[test][0]
    assert "the failure of a case" in failures["test_case_fails_by_itself"][0]

    # Without a recording there is nothing to check.
    for check in ("leak_check()", "peak_check(0)"):
        alone = subprocess.run([sys.executable, "-c", f"import hbmprof\nwith hbmprof.{check}: pass"], capture_output=True,
                               text=True, check=True)
        assert "RuntimeWarning: hbmprof." in alone.stderr and ": nothing was checked, because" in alone.stderr, alone.stderr
    return 0


sys.exit(main())
