"""What a function says of its programs is saved with it: buckets, a budget, rolling, a search for
nan."""

import copy
import json
import shutil

import numpy as np
import pytest

import tracegraph as tg
from tests import damage
from tracegraph.errors import LoadError


class Model(tg.Module):
    def __init__(self):
        self.kernels = [tg.Variable(tg.eye(4) * (i + 1.0) / 9.0) for i in range(8)]

    @tg.function(bucket_sizes=[8, 32])
    def padded(self, x):
        return tg.reduce_sum(x * 2.0, axis=0)

    @tg.function(bucket_sizes="powers_of_two")
    def doubling(self, x):
        return tg.reduce_mean(x, axis=0)

    @tg.function(roll="always")
    def rolled(self, x):
        for kernel in self.kernels:
            x = x + tg.sigmoid(2.0 * tg.tanh(x @ kernel))
        return x

    @tg.function(roll=False)
    def unrolled(self, x):
        return self.rolled(x)

    @tg.function(memory_budget="1MiB")
    def frugal(self, x):
        return tg.reduce_sum(tg.exp(x))

    @tg.function(locate_numerics=True)
    def located(self, x):
        return tg.math.log(x) * 2.0

    @tg.function(locate_numerics=True)
    def located_with_effects(self, x):
        tg.print("x")
        return tg.math.log(x) * 2.0

    @tg.function
    def plain(self, x):
        return x


NAMES = [name for name, value in vars(Model).items() if isinstance(value, tg.Function)]


@pytest.fixture(scope="module")
def model():
    made = Model()
    for name in NAMES:
        for size in (3, 5):  # so that the next trace has an open size, where there are buckets
            getattr(made, name)(tg.ones([size, 4]))
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "model"
    signature = model.padded.get_concrete_function(tg.TensorSpec([None, 4]))
    tg.saved_model.save(model, path, signatures=signature)
    return path


@pytest.fixture(params=["loaded", "copied", "saved again"])
def loaded(request, folder, tmp_path):
    found = tg.saved_model.load(folder)
    if request.param == "copied":
        return copy.deepcopy(found)
    if request.param == "saved again":
        tg.saved_model.save(found, tmp_path / "again")
        return tg.saved_model.load(tmp_path / "again")
    return found


def open_trace(function):
    return next(x for x in function.traces if not x.graph.is_static)


def test_other_sizes_run_in_the_program_of_their_bucket(loaded):
    for function, bucket in ((loaded.padded, 8), (loaded.doubling, 8)):
        trace = open_trace(function)
        for size in (6, 7):
            x = np.arange(4.0 * size, dtype=np.float32).reshape(size, 4)
            wanted = 2 * x.sum(0) if function is loaded.padded else x.mean(0)
            np.testing.assert_allclose(function(x).numpy(), wanted, rtol=1e-6)
        (types,) = trace.bucketing.executions
        assert types[0].shape == (bucket, 4)


def test_a_signature_has_the_buckets_of_its_function(folder):
    signature = tg.saved_model.load(folder).signatures["serving_default"]
    for size in (9, 11):
        signature(tg.ones([size, 4]))
    (types,) = signature.bucketing.executions
    assert types[0].shape == (32, 4)


def test_blocks_are_rolled_as_they_were(loaded, model):
    x = tg.ones([3, 4])
    for name, runs in (("rolled", [8]), ("unrolled", None)):
        function = getattr(loaded, name)
        np.testing.assert_allclose(function(x).numpy(), getattr(model, name)(x).numpy(), rtol=1e-6)
        execution = function.get_concrete_function(x).execution([x.type])
        rolled = execution.rolled
        assert (rolled and [len(run) for run in rolled.runs]) == runs


def test_the_budget_holds_after_loading(loaded):
    assert "of a memory_budget of 1.0 MiB" in str(loaded.frugal.memory(tg.ones([3, 4])))


def test_the_first_nan_is_found_after_loading(loaded):
    for name in ("located", "located_with_effects"):
        with pytest.raises(FloatingPointError, match=r"^log: ") as caught:
            getattr(loaded, name)(-tg.ones([3, 4]))
        assert "test_saving_run_options.py:" in str(caught.value)


def test_a_function_of_no_options_says_nothing_of_them(folder):
    content = json.loads((folder / "tracegraph.json").read_text())
    said = {row["name"]: row.get("run_options") for row in content["functions"]}
    assert said["plain"] is None
    assert said["frugal"] == {"memory_budget": 2**20}
    assert said["unrolled"] == {"roll": "never"}


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ([], "it is a list, and it must be an object"),
        ({"unknown": 1}, "the field 'unknown' is not known"),
        ({"bucket_sizes": "some"}, "it is 'some', and it must be one of powers_of_two"),
        ({"bucket_sizes": []}, "there is no size"),
        ({"bucket_sizes": [8, 0]}, "it is 0, and it must be positive"),
        ({"bucket_sizes": [8.0]}, "and it must be an integer"),
        ({"bucket_sizes": 8}, "and it must be a list"),
        ({"memory_budget": 0}, "it is 0, and it must be positive"),
        ({"memory_budget": "1GiB"}, "and it must be an integer"),
        ({"locate_numerics": 1}, "it must be true or false"),
        ({"roll": "auto"}, "it is 'auto', and it must be one of"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, folder, options, fact):
    copied = shutil.copytree(folder, tmp_path / "copied")
    content = damage.manifest(copied)
    content["functions"][0]["run_options"] = options
    damage.set_manifest(copied, content)
    with pytest.raises(LoadError) as caught:
        tg.saved_model.load(copied)
    assert fact in str(caught.value) and "functions[0].run_options" in str(caught.value)
