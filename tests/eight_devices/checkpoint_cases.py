"""Checkpoints of what is divided among four devices: `tests/devices/test_layouts.py` runs this file
in a process that has eight."""

import json

import numpy as np
import pytest

import tracegraph as tg
from tests.counting_reads import bytes_of_reads
from tracegraph.archive import array_parts, tensors
from tracegraph.archive.manifest import Entry
from tracegraph.train.checkpoint_files import open_checkpoint

SHAPE = (64, 24)


def mesh_of(count):
    return tg.distribute.Mesh({"data": count})


def variable(value, axes, count=4):
    layout = None if axes is None else tg.distribute.Layout(mesh_of(count), axes)
    return tg.Variable(value, layout=layout)


def values(dtype="float32", shape=SHAPE):
    rng = np.random.default_rng(0)
    return np.asarray(rng.standard_normal(shape) * 100, tg.as_dtype(dtype).numpy_dtype)


def rows_of(path):
    return json.loads((path / "tracegraph.json").read_text())["values"]


def save(path, **variables):
    tg.train.Checkpoint(**variables).write(path)
    return path


@pytest.fixture
def bytes_read(monkeypatch):
    """The bytes of tensors that were read."""
    return bytes_of_reads(monkeypatch.setattr)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex128", "int8", "bool"])
@pytest.mark.parametrize("axes", [["data", None], [None, "data"], [("data",), None], None])
def test_every_layout_is_loaded_on_every_other(dtype, axes, tmp_path):
    value = values(dtype)
    path = save(tmp_path / "checkpoint", v=variable(value, axes))
    for count, others in ((4, ["data", None]), (2, [None, "data"]), (1, None), (4, [None, None])):
        v = variable(np.zeros(SHAPE, value.dtype), others, count)
        tg.train.Checkpoint(v=v).restore(str(path)).assert_consumed()
        assert v.numpy().tobytes() == value.tobytes()
        assert len(v.made_tensor().buffer.devices()) == (count if others else 1)
        if others:
            assert v.layout == tg.distribute.Layout(mesh_of(count), others)
            for shard in v.buffer.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])


def test_a_file_has_each_part_once(tmp_path):
    mesh = tg.distribute.Mesh({"data": 2, "model": 2})
    layout = tg.distribute.Layout(mesh, ["data", None])
    path = save(tmp_path / "checkpoint", v=tg.Variable(values(), layout=layout), w=tg.Variable(1.0))
    row = rows_of(path)["v"]
    assert sorted(x["begin"] for x in row["parts"]) == [[0, 0], [32, 0]]
    assert {tuple(x["shape"]) for x in row["parts"]} == {(32, 24)}
    assert "parts" not in rows_of(path)["w"]
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert size < 1.1 * values().nbytes + 1000


def test_large_parts_are_cut_and_little_is_read_in_vain(tmp_path, bytes_read, monkeypatch):
    monkeypatch.setattr(array_parts, "PART_BYTES", 400)
    path = save(tmp_path / "checkpoint", v=variable(values(), ["data", None]))
    row = rows_of(path)["v"]
    assert len(row["parts"]) == 4 * 4
    stored = tensors_of(path)
    bytes_read.clear()
    found = stored.reader()((16, 0), (32, 24))
    np.testing.assert_array_equal(found, values()[16:32])
    assert sum(bytes_read) == values()[16:32].nbytes
    bytes_read.clear()
    found = stored.reader()((17, 3), (18, 5))
    np.testing.assert_array_equal(found, values()[17:18, 3:5])
    assert sum(bytes_read) <= 400
    bytes_read.clear()
    v = variable(np.zeros(SHAPE, np.float32), [None, "data"])
    tg.train.Checkpoint(v=v).restore(str(path))
    np.testing.assert_array_equal(v, values())
    assert sum(bytes_read) - 8 <= values().nbytes  # no part twice


@pytest.mark.parametrize("axes", [["data", None], [None, "data"]])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_whichever_axis_is_divided_nothing_is_read_in_vain(count, axes, tmp_path, bytes_read):
    value = values(shape=(512, 256))
    path = save(tmp_path / "checkpoint", v=variable(value, axes))
    stored = tensors_of(path)
    assert len(rows_of(path)["v"]["parts"]) == 32, "no part is smaller than it must be"
    for axis, size in enumerate(value.shape):
        begin, end = [0, 0], list(value.shape)
        begin[axis], end[axis] = size - size // count, size  # what the last of them holds
        bytes_read.clear()
        expected = value[begin[0] :, begin[1] :]
        np.testing.assert_array_equal(stored.reader()(begin, end), expected)
        most = 1.1 if count < 8 else 2.2  # 8 x 8 parts would be too small
        assert sum(bytes_read) <= most * expected.nbytes


def tensors_of(path):
    return open_checkpoint(str(path)).values["v"]


def test_a_part_that_was_changed_is_told(tmp_path):
    path = save(tmp_path / "checkpoint", v=variable(values(), ["data", None]))
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    v = variable(np.zeros(SHAPE, np.float32), ["data", None])
    with pytest.raises(tg.errors.LoadError, match=r"the tensor 'v@48\.0' was changed"):
        tg.train.Checkpoint(v=v).restore(str(path))
    np.testing.assert_array_equal(v, np.zeros(SHAPE))


def drop_one(row):
    row["parts"].pop()


def repeat_one(row):
    row["parts"].append(row["parts"][0])


def larger(row):
    row["shape"] = [64, 25]


def other_rank(row):
    row["parts"][0]["begin"] = [0]


def outside(row):
    row["shape"] = [48, 24]


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (drop_one, "its parts do not cover each element exactly once"),
        (repeat_one, "its parts do not cover each element exactly once"),
        (larger, "its parts do not cover each element exactly once"),
        (other_rank, "it has other axes than the array, which has 2"),
        (outside, r"a part of it ends outside its shape, \[48, 24\]"),
    ],
)
def test_parts_that_are_no_array_are_refused(change, fact, tmp_path):
    path = save(tmp_path / "checkpoint", v=variable(values(), ["data", None]))
    row = rows_of(path)["v"]
    change(row)
    files = {x.name: tensors.TensorFile(x, x.name) for x in path.glob("*.safetensors")}
    with pytest.raises(tg.errors.LoadError, match=fact):
        array_parts.stored_arrays(Entry({"v": row}, "the manifest"), files)


def test_an_optimizer_goes_on_with_fewer_devices_as_it_would_have(tmp_path):
    def model(count):
        tg.random.set_seed(1)
        w = variable(values(shape=(8, 4)) / 100, ["data", None], count)
        optimizer = tg.optimizers.Adam(0.1)

        @tg.function
        def step(x):
            with tg.GradientTape() as tape:
                loss = tg.reduce_sum(tg.square(x @ w - 1.0))
            optimizer.minimize(loss, [w], tape=tape)

        return w, optimizer, step

    x = values(shape=(3, 8)) / 100
    w, optimizer, step = model(4)
    step(x)
    path = save(tmp_path / "checkpoint", w=w, optimizer=optimizer)
    results = []
    for count in (1, 2):
        other, kept, go_on = model(count)
        go_on(x)
        tg.train.Checkpoint(w=other, optimizer=kept).restore(str(path)).assert_consumed()
        np.testing.assert_array_equal(other, w)
        go_on(x)
        results.append(other.numpy())
    step(x)
    for found in results:
        np.testing.assert_allclose(found, w, rtol=1e-6, atol=1e-6)
