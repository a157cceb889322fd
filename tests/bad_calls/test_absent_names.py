"""Every public name of TensorFlow 2.21 is there, or says what to use in its place."""

import operator
import pathlib
import re

import pytest

import tracegraph as tg
from tracegraph.api import absent, families


def names():
    """The names that stand in the list, by their namespaces."""
    text = pathlib.Path(__file__).with_name("tensorflow_names.txt").read_text()
    for part in text.split("[")[1:]:
        space, _, listed = part.partition("]")
        yield space, listed.split()


NAMES = dict(names())


@pytest.mark.parametrize("space", NAMES)
def test_names_are_there_or_say_what_to_use(space):
    silent = []
    for name in NAMES[space]:
        path = f"{space}.{name}".removeprefix(".")
        try:
            operator.attrgetter(path)(tg)
        except AttributeError as error:
            if "\n  fix: " not in str(error) or __file__ not in str(error):
                silent.append(path)
    assert silent == []


def test_advice_names_what_is_there():
    rules = [*families._RULES, *families._REST]
    assert len(rules) > 50
    fixes = [fix for _, _, fix in rules] + [fix for _, fix in absent.ABSENT.values()]
    for pattern, _, _ in rules:
        re.compile(pattern)
    for fix in fixes:
        for named in re.findall(r"\btg((?:\.[A-Za-z_]\w*)+)", fix):
            assert operator.attrgetter(named[1:])(tg) is not None, fix


@pytest.mark.parametrize(
    ("path", "words"),
    {
        "raw_ops.AddV2": "use tg.add",
        "raw_ops.MatMul": "use tg.matmul",
        "raw_ops.Conv2DBackpropInput": "use tg.GradientTape",
        "raw_ops.Sum": "use tg.reduce_sum",
        "losses.MSE": "use tg.losses.mean_squared_error",
        "sets.union": "NumPy's functions of sets",
        "qint8": "tg.quantization",
        "errors.NotFoundError": "catch OSError",
        "train.Checkpont": "use tg.train.Checkpoint, if that is meant",
        "layers.Dens": "use tg.layers.Dense, if that is meant",
        "random.norml": "use tg.random.normal, if that is meant",
        "debugging.enable_check_numerics": "check_numerics=True",
        "keras.applications": "another package",
        "nn.safe_embedding_lookup_sparse": "use tg.nn.embedding_lookup of padded rows",
        "summary.trace_on": "tg.profile(f, x)",
        "variable_creator_scope": "a function of your own",
        "edit_distance": "compare the sequences in Python",
        "checkpoint": "tg.train.Checkpoint for files",
        "random.experimental.stateless_split": "use tg.random.split",
        "random.experimental.stateless_fold_in": "tg.random.fold_in",
        "random.experimental.index_shuffle": "tg.random.stateless_shuffle",
        "experimental.dlpack.to_dlpack": "tg.numpy.from_dlpack",
        "experimental.numpy.sum": "use tg.numpy",
        "distribute.experimental.TPUStrategy": "use tg.distribute.Mesh",
        "train.experimental.PythonState": "use tg.train.Checkpoint",
        "train.ClusterSpec": "use tg.distribute.initialize",
        "keras.config.set_floatx": "dtype=tg.float16",
        "keras.distribution.DeviceMesh": "use tg.distribute.Mesh",
        "losses.get": "tg.losses.MeanSquaredError()",
        "autograph.trace": "Python's print",
        "profiler.experimental": "tg.profile(f, x)",
        "nn.compute_accidental_hits": "remove_accidental_hits=True",
        "lookup.StaticHashTable": "use tg.layers.IntegerLookup",
        "version.VERSION": "use tg.__version__",
        "autograph.experimental.Feature": "tg.autograph.to_code",
        "keras.FloatDTypePolicy": 'dtype="mixed_float16"',
        "utils.get_file": "read and prepared by Python",
        "layers.Hashing": "x % num_bins",
        "layers.TextVectorization": "tg.utils.pad_sequences",
        "layers.Pipeline": "tg.layers.Sequential",
        "optimizers.MultiOptimizer": "an optimizer for each group of variables",
    }.items(),
)
def test_families_and_slips_say_what_they_must(path, words):
    with pytest.raises(AttributeError, match=re.escape(words)):
        operator.attrgetter(path)(tg)


def test_names_of_types():
    assert tg.half is tg.float16 and tg.double is tg.float64
    assert tg.as_dtype("half") is tg.half and tg.as_dtype("double") is tg.double
    assert tg.as_dtype("float") is tg.float32 and tg.zeros([2], "float").dtype == "float32"
