"""Meshes and layouts. What needs several devices is in `tests/eight_devices`, and runs in a process
of its own: JAX finds out how many devices there are when it starts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tests import damage
from tracegraph.ops.layout import WithLayout
from tracegraph.views.device_costs import collectives_in

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("files", "names", "which"),
    [
        # In one process, which is most of the time of a small case.
        ("layout_cases checkpoint_cases placement_cases division_cases", "test", "not sweep"),
        *(
            pytest.param(*row, "sweep", marks=pytest.mark.sweep)
            for row in (
                ("layout_cases", "test"),
                ("division_cases", "every_op"),
                ("division_cases", "convolutions"),
                ("division_cases", "not every_op and not convolutions"),
            )
        ),
    ],
)
def test_the_cases_on_8_devices(files, names, which):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    paths = [f"tests/eight_devices/{file}.py" for file in files.split()]
    done = subprocess.run(
        [*command, *paths, "-m", which, "-k", names],
        capture_output=True,
        text=True,
        timeout=580,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > (150 if which != "sweep" else 3)


def test_a_graph_for_more_devices_runs_on_one():
    op = WithLayout("data=4,model=2", ("data", None))
    f = tg.function(lambda x: op(x * 2.0))
    np.testing.assert_array_equal(f(tg.ones([8, 2])).numpy(), np.full((8, 2), 2.0))
    assert f(tg.ones([8, 2])).layout is None


def test_a_layout_for_more_devices_stays_in_a_model_that_is_saved_again(tmp_path):
    alone = tg.distribute.Layout(tg.distribute.Mesh({"data": 1, "model": 1}), ["data", "model"])
    module, value = tg.Module(), np.arange(24, dtype=np.float32).reshape(4, 6)
    module.w = tg.Variable(value, layout=alone)
    tg.saved_model.save(module, tmp_path)
    content = damage.replaced(damage.manifest(tmp_path), "data=1,model=1", "data=4,model=2")
    damage.set_manifest(tmp_path, content)
    for added in range(2):
        loaded = tg.saved_model.load(tmp_path)
        assert loaded.w.layout is None
        np.testing.assert_array_equal(loaded.w.numpy(), value + added)
        loaded.w.assign_add(tg.ones([4, 6]))
        tg.saved_model.save(loaded, tmp_path)
        assert "data=4,model=2" in json.dumps(damage.manifest(tmp_path))


def test_a_mesh_larger_than_the_devices_is_refused():
    with pytest.raises(ValueError, match="the mesh a=4096 has 4096 devices") as caught:
        tg.distribute.Mesh({"a": 4096})
    assert "--xla_force_host_platform_device_count=4096" in str(caught.value)


def test_a_tensor_of_unknown_rank_has_no_layout():
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 1}), ["data"])
    f = tg.function(lambda x: tg.distribute.with_layout(x, layout))
    with pytest.raises(ValueError, match="a tensor whose rank is not known"):
        f.get_concrete_function(tg.TensorSpec(None))


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ('mesh="data=4", axes=["rows",none]', "names the axis 'rows', and the mesh is data=4"),
        ('mesh="data=4", axes=["data","data"]', "uses the axis 'data' of the mesh twice"),
        ('mesh="data=4", axes=["data"]', "a layout for 1 axis"),
        ('mesh="data=3", axes=["data",none]', "the size 8, which 'data' of 3 does not divide"),
        ('mesh="data=0", axes=["data",none]', "the axis 'data' of a mesh has the size 0"),
        ('mesh="data", axes=["data",none]', "'data' is not a mesh"),
        ('mesh="a=99999,b=99999", axes=["a",none]', "has 9,999,800,001 devices"),
        ('mesh="data=4", axes=[3,none]', 'the attribute axes of with_layout is "[3,none]", not'),
    ],
)
def test_a_text_that_does_not_hold_together_is_refused(attributes, words):
    text = (
        "graph @f(%x: f32[8,2]) -> (f32[8,2]) {\n"
        f"  %0 = with_layout<{attributes}>(%x) : f32[8,2]\n"
        "  return %0\n}"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        tg.Graph.from_text(text)


HLO = """\
HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add, METADATA
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]{0}) while(%t), condition=%c, body=%body, TRIPS
  %g = bf16[16,4]{1,0} all-gather(%y), replica_groups=[2,4]<=[8], dimensions={0}, JOINED
  %s = f32[2]{0} reduce-scatter(%y), replica_groups=mesh['a'=4,'b'=2] {'a'}, to_apply=%add
  %t2 = (f32[4]{0}, f32[4]{0}) all-to-all(%y, %z), replica_groups={{0,1}}
  ROOT %q = f32[8]{0} collective-permute(%y), source_target_pairs={{0,1},{1,0}}
}
"""
for word, text in {
    "METADATA": 'metadata={op_name="jit(f)/a.py:3 vjp/dot"}',
    "TRIPS": 'backend_config={"known_trip_count":{"n":"6"}}',
    "JOINED": 'metadata={op_name="jit(f)/(a.py:4/dot:b.py:5 jvp/mul)"}',
}.items():
    HLO = HLO.replace(word, text)


def test_collectives_are_read_from_the_text_of_a_program():
    found = {x.kind: x[1:] for x in collectives_in(HLO, 8)}
    assert found == {
        "all-reduce": (("a.py:3 vjp",), 2, 32, 6 * 32, 6),
        "all-gather": (("a.py:4", "b.py:5 jvp"), 4, 128, 96, 1),
        "reduce-scatter": ((), 4, 32, 24, 1),
        "all-to-all": ((), 2, 32, 16, 1),
        "collective-permute": ((), 8, 32, 32, 1),
    }


def test_the_costs_of_devices_need_a_function():
    graph = tg.Graph.from_text("graph @f(%x: f32[2]) -> (f32[2]) {\n  return %x\n}")
    with pytest.raises(TypeError, match="not a graph of a function that runs on several devices"):
        graph.summary(devices=True)
    f = tg.function(lambda x: x * 2.0)
    costs = f.get_concrete_function(tg.TensorSpec([4])).summary(devices=True).devices
    assert (costs.device_count, costs.collectives) == (1, ())
    assert [(x.on_device, x.bytes) for x in (*costs.inputs, *costs.results)] == [(16, 16)] * 2
