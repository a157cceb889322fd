"""What pytest gives to tests of several files."""

import hypothesis
import pytest

import tracegraph as tg

# How long an example takes says nothing on a machine that others use too.
hypothesis.settings.register_profile("tracegraph", deadline=None)
hypothesis.settings.load_profile("tracegraph")

# A busy machine compiles slowly, and what tests print is compared.
tg.config.set_compile_notes(False)


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn, *args)`: fn(*args) as it is, or compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn, *args: tg.function(fn)(*args)
    return lambda fn, *args: fn(*args)
