"""What pytest gives to tests of several files."""

import pytest

import tracegraph as tg


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn, *args)`: fn(*args) as it is, or compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn, *args: tg.function(fn)(*args)
    return lambda fn, *args: fn(*args)
