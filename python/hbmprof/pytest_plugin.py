"""The pytest plugin: tests that are marked with `hbmprof_leak_check` fail if they leave device memory in use.

    @pytest.mark.hbmprof_leak_check
    def test_decode(): ...

    @pytest.mark.hbmprof_leak_check(max_bytes=1 << 20)
    async def test_with_a_cache(): ...
"""

import functools
import inspect

import pytest

import hbmprof


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "hbmprof_leak_check(max_bytes=0): fail if more device memory is in use after the test than before")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    marker = pyfuncitem.get_closest_marker("hbmprof_leak_check")
    # A plugin that repeats a test calls this again for the same item.
    if marker is not None and not hasattr(pyfuncitem.obj, "_hbmprof_is_checked"):
        pyfuncitem.obj = _checked(pyfuncitem.obj, marker)


def _checked(test, marker):
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def checked(*args, **kwargs):
            __tracebackhide__ = True
            with hbmprof.leak_check(*marker.args, **marker.kwargs):
                return await test(*args, **kwargs)

    else:

        @functools.wraps(test)
        def checked(*args, **kwargs):
            __tracebackhide__ = True
            with hbmprof.leak_check(*marker.args, **marker.kwargs):
                return test(*args, **kwargs)

    checked._hbmprof_is_checked = True
    return checked
