"""The pytest plugin: limits of the device memory that a test may use at its peak, and leave in use at its end.

    @pytest.mark.hbmprof(peak="2GiB", leak="0")
    def test_decode(): ...

    @pytest.mark.hbmprof(leak="1MiB")
    async def test_with_a_cache(): ...

    @pytest.mark.hbmprof(budget="memory.budget")
    def test_server(): ...

The mark hbmprof_leak_check(max_bytes=0) is the same as hbmprof(leak=max_bytes).
"""

import contextlib
import functools

import pytest

import hbmprof


def pytest_configure(config):
    config.addinivalue_line(
        "markers", 'hbmprof(peak="2GiB", leak="0"), hbmprof(budget="memory.budget"): fail if the test uses more device memory at its '
        "peak than `peak`, beyond what was in use at its start, leaves more than `leak` in use, or exceeds the file `budget`")
    config.addinivalue_line(
        "markers", "hbmprof_leak_check(max_bytes=0): fail if more device memory is in use after the test than before")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    checks = _checks(item)
    # A plugin that repeats a test calls this again for the same item.
    if checks and not hasattr(item.runtest, "_hbmprof_is_checked"):
        item.runtest = _checked(item.runtest, checks)


def _checks(item):
    """Returns functions, each of which makes a check of the test's marks. Of several marks, the closest has a limit."""
    limits = {}
    for marker in item.iter_markers("hbmprof"):
        if marker.args or not marker.kwargs or set(marker.kwargs) - {"peak", "leak", "budget"}:
            pytest.fail('write the mark as hbmprof(peak="2GiB", leak="0") or hbmprof(budget="memory.budget", leak="0"), or with one of them',
                        pytrace=False)
        limits = {**marker.kwargs, **limits}
    if {"peak", "budget"} <= set(limits):
        pytest.fail("a test has either a peak or a budget, which has a total", pytrace=False)
    checks = []
    if "leak" in limits:
        checks.append(functools.partial(hbmprof.leak_check, limits["leak"]))
    if "peak" in limits:
        checks.append(functools.partial(hbmprof.peak_check, limits["peak"]))
    if "budget" in limits:
        checks.append(functools.partial(hbmprof.budget_check, limits["budget"]))
    marker = item.get_closest_marker("hbmprof_leak_check")
    if marker is not None:
        checks.append(functools.partial(hbmprof.leak_check, *marker.args, **marker.kwargs))
    return checks


@contextlib.contextmanager
def _all(checks):
    __tracebackhide__ = True
    with contextlib.ExitStack() as stack:
        for check in checks:
            stack.enter_context(check())
        yield
        passed = stack.pop_all()
    try:
        passed.close()
    except (hbmprof.LeakError, hbmprof.PeakError) as error:
        # The message has the call stacks; Python's own stack would show only this plugin.
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None


def _checked(runtest, checks):
    # The whole item, not its function: unittest calls the method by its name, and setUp and tearDown belong to the test.
    @functools.wraps(runtest)
    def checked():
        __tracebackhide__ = True
        with _all(checks):
            runtest()

    checked._hbmprof_is_checked = True
    return checked
