"""Saved models from directories that are not trusted: whatever is wrong is a LoadError that names
the file and the place, and nothing is run, followed, waited for or allocated before it is raised.

`tests/fuzz_loading.py` finds what nobody thought of; here stands what somebody did.
"""

import copy
import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tests import damage, fuzz_loading
from tracegraph.errors import LoadError, SignatureError, TraceError

save, load = tg.saved_model.save, tg.saved_model.load
ROOT = Path(__file__).parents[2]
CHECKED = tg.saved_model.LoadOptions(verify=True)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return {path.name: path for path in fuzz_loading.save_models(folder)}


@pytest.fixture
def model(tmp_path, originals):
    """A copy of the model `values`, to be damaged."""
    return copied(originals["values"], tmp_path)


def copied(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / original.name))


def refusal(path, **options):
    """The fact of the LoadError, which names something in the directory, without place and fix."""
    with pytest.raises(LoadError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert str(path) in text
    return re.split("\n  (?:at|fix)", text)[0].replace(f"{path}/", "")


def changed(path, change):
    """The refusal of a directory whose manifest is changed and sealed again."""
    content = damage.manifest(path)
    change(content)
    damage.set_manifest(path, content)
    return refusal(path)


def attribute(content, name, number=0):
    """The row of an attribute of an object in a manifest."""
    return next(row for row in content["objects"][number]["attributes"] if row[0] == name)


# Damage that no checksum hides.


def test_a_flipped_bit_in_any_file_is_seen(originals, tmp_path):
    draw = random.Random(0)
    for name in ("values", "effects"):
        for file in fuzz_loading.contents(originals[name]):
            for _ in range(12 if file == damage.MANIFEST else 4):
                path = copied(originals[name], tmp_path)
                data = bytearray((path / file).read_bytes())
                place = draw.randrange(len(data))
                data[place] ^= 1 << draw.randrange(8)
                (path / file).write_bytes(data)
                refusal(path, options=CHECKED)
                shutil.rmtree(path)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.sweep)])
def test_every_bit_of_a_manifest_counts(tmp_path, stride):
    tg.saved_model.save(tg.Module(), tmp_path / "m")
    path = tmp_path / "m" / damage.MANIFEST
    data = path.read_bytes()
    for place in range(0, len(data), stride):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        refusal(tmp_path / "m")
    for end in range(0, len(data), 5 * stride):
        path.write_bytes(data[:end])
        refusal(tmp_path / "m")
    path.write_bytes(data + b" ")
    assert refusal(tmp_path / "m").endswith("its checksum does not match its contents")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("stem", ["graph", "weights", "constants", "assets", damage.MANIFEST])
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda path: path.unlink(), "is missing|holds no tracegraph.json"),
        (lambda path: path.write_bytes(b""), "has 0 bytes, and the manifest says|is not JSON"),
        (lambda path: os.truncate(path, 5), "has 5 bytes, and the manifest says|is not JSON"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "bytes, and the m|was changed"),
    ],
)
def test_files_that_are_not_there_or_not_whole(model, stem, change, fact):
    change(found(model, stem))
    with pytest.raises(LoadError, match=fact):
        load(model)


def found(model, stem):
    if stem == damage.MANIFEST:
        return model / stem
    return next((model / stem).iterdir()) if stem == "assets" else damage.find(model, stem)


@pytest.mark.parametrize("stem", ["graph", "assets"])
def test_files_of_the_right_size_with_other_bytes(model, stem):
    path = found(model, stem)
    path.write_bytes(bytes(path.stat().st_size))
    assert "was changed: its SHA-256 is" in refusal(model)


# What is not a file.


@pytest.mark.parametrize("stem", ["graph", "weights", "assets", damage.MANIFEST])
def test_links_are_not_followed(model, tmp_path, stem):
    path = found(model, stem)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link, which is not followed" in refusal(model)


def test_a_folder_that_is_a_link(model, tmp_path):
    (model / "assets").rename(tmp_path / "elsewhere")
    (model / "assets").symlink_to(tmp_path / "elsewhere")
    assert "assets is a symbolic link" in refusal(model)


@pytest.mark.parametrize("stem", ["graph", "weights", "assets", damage.MANIFEST])
def test_pipes_and_folders_in_place_of_files(model, stem):
    path = found(model, stem)
    path.unlink()
    os.mkfifo(path)
    assert refusal(model).endswith("is not a file")  # at once: nothing waits for the other end
    path.unlink()
    path.mkdir()
    assert refusal(model).endswith("is not a file")


def test_a_path_that_is_none(tmp_path):
    for path in (tmp_path / "none", tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(LoadError, match="there is no directory"):
            load(path)
    (tmp_path / "file").touch()
    with pytest.raises(LoadError, match="is a file"):
        load(tmp_path / "file")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LoadError):
        load(tmp_path / "loop")


NAMES = [
    *("../graph-0123456789ab.tgir", "/etc/passwd", "assets/../../x", "a\\b", "extra/x", "assets/x"),
    *("graph-0123456789ab.tgir\x00", "", ".", "..", "assets/", "assets/0123456789ab-..", "CON"),
    *("C:graph-0123456789ab.tgir", "graph-0123456789ab.tgir/", "assets/0123456789ab-x\u202e"),
    *("assets/0123456789ab-e\u0301", "tracegraph.json", "graph-0123456789AB.tgir", "stablehlo/x"),
    "assets/0123456789ab-" + "x" * 300,
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files(model, name):
    def change(content):
        content["files"][name] = {"bytes": 1, "sha256": "0123456789ab" + "0" * 52}

    assert "$.files" in changed(model, change)


def test_sizes_checksums_and_uses_of_files(model):
    graph = damage.find(model, "graph")
    size, digest = graph.stat().st_size, hashlib.sha256(graph.read_bytes()).hexdigest()
    for row, fact in (
        (
            {"bytes": size + 1, "sha256": digest},
            f"has {size} bytes, and the manifest says {size + 1}",
        ),
        ({"bytes": -1, "sha256": digest}, f"it is -1, and it must be from 0 to {2**63 - 1}"),
        ({"bytes": 2**64, "sha256": digest}, "has more than 64 bits"),
        ({"bytes": True, "sha256": digest}, "it is true or false, and it must be an integer"),
        (
            {"bytes": size, "sha256": digest[:-1]},
            "it is not a SHA-256, which has 64 hexadecimal digits",
        ),
        ({"bytes": size, "sha256": "0" * 64}, f"is not that of its SHA-256, {'0' * 64}"),
        ({"bytes": size, "sha256": digest[:12] + "0" * 52}, "was changed: its SHA-256 is"),
        ({"bytes": size}, "the field 'sha256' is missing"),
        ({"bytes": size, "sha256": digest, "x": 1}, "the field 'x' is not known"),
    ):
        assert fact in changed(model, lambda m, row=row: m["files"].update({graph.name: row}))


def test_a_file_that_nothing_uses(model):
    digest = hashlib.sha256(b"x").hexdigest()
    (model / f"more-{digest[:12]}.bin").write_bytes(b"x")
    row = {"bytes": 1, "sha256": digest}
    text = changed(model, lambda m: m["files"].update({f"more-{digest[:12]}.bin": row}))
    assert text.endswith("nothing in the manifest uses this file")
    damage.set_manifest(model, damage.manifest(model) | {"files": {}})
    assert "it is 'weights-" in refusal(model)


def test_what_an_asset_may_be(model):
    (name,) = damage.manifest(model)["files"].keys() & {damage.find(model, "graph").name}
    text = changed(model, lambda m: attribute(m, "words").__setitem__(1, {"asset": name}))
    assert text.endswith("is not an asset: assets are in the folder assets")


# JSON.


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' is given twice in one object"),
        (b'{"\\u202e": 1, "\\u202e": 2}', r"the name '\u202e' is given twice in one object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1' + b"0" * 5000 + b"}", f"the integer 1{'0' * 29} has more than 64 bits"),
        (b"[" * 150_000, "it is nested too deep"),
        (b"[" * 300 + b"]" * 300, "is nested more than 200 deep"),
        (b"\xff\xfe{}", "can't decode byte 0xff"),
        (b"\xef\xbb\xbf{}", "Unexpected UTF-8 BOM"),
        (b"[]", "it is a list, and it must be an object"),
        (b'"x"', "it is a string, and it must be an object"),
        (b"", "Expecting value"),
        (b"{}", "the field 'format' is missing"),
    ],
)
def test_json_that_is_none(tmp_path, data, fact):
    (tmp_path / damage.MANIFEST).write_bytes(data)
    assert fact in refusal(tmp_path)


def test_large_manifests_are_refused_before_they_are_read(tmp_path):
    with open(tmp_path / damage.MANIFEST, "wb") as file:
        file.truncate(2**40)  # no byte of it is on the disk
    assert "bytes, more than any manifest" in refusal(tmp_path)
    (tmp_path / damage.MANIFEST).write_bytes(b"[" + b"[]," * 5_000_000 + b"0]")
    tracemalloc.start()
    assert "has more than 4194304 values" in refusal(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 50e6  # the lists would take 400 MB
    tracemalloc.stop()


def test_twins_are_found_in_linear_time(tmp_path):
    rows = ",".join(f'"{i}":0' for i in range(200_000))
    (tmp_path / damage.MANIFEST).write_text("{" + rows + ',"199999":0}')
    start = time.process_time()
    assert "the name '199999' is given twice" in refusal(tmp_path)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (
            lambda m: m.update(version=2),
            "$.version: the format has version 2, written by tracegraph",
        ),
        (lambda m: m.update(version=0), "$.version: there is no version 0"),
        (lambda m: m.update(version="1"), "$.version: it is a string, and it must be an integer"),
        (lambda m: m.update(version=2, producer="\x1b[2J"), r"written by '\x1b[2J',"),
        (lambda m: m.update(format="\u202e"), r"$.format: it is '\u202e', and not 'tracegraph"),
        (lambda m: m.update(more=1), "$: the field 'more' is not known"),
        (
            lambda m: m.update(root={"object": 9}),
            "$.root.object: it is 9, and it must be from 0 to 1",
        ),
        (lambda m: m.update(root={"float": "1.0"}), "$.root: the root must be an object, a func"),
        (
            lambda m: m.update(root={"x" * 99: 1}),
            f"$.root: there is no kind of value '{'x' * 60}...'",
        ),
        (lambda m: m.update(graphs="none"), "$.graphs: it names the file 'none', which is not in"),
        (
            lambda m: m.update(objects=[0] * 70_000),
            "$.objects: there are 70000 objects, more than 65536",
        ),
    ],
)
def test_the_fields_of_a_manifest(model, change, fact):
    assert changed(model, change).startswith(f"tracegraph.json: {fact}") or fact in refusal(model)


# Names of attributes.


@pytest.mark.parametrize(
    "name",
    [
        *("__class__", "__dict__", "__getattr__", "__init__", "__reduce__", "__deepcopy__"),
        *("_tg_signatures", "_tg_function_f_1", "_hidden", "_omitted", "_ordered_attributes"),
        *("variables", "trainable_variables", "submodules", "name", "signatures", "name_scope"),
        *("", "a\u202eb", "a\u200db", "a\x00b", "e\u0301", "\ufb01", "x" * 2000, "\ud800"),
    ],
)
def test_attributes_that_would_hide_something(model, name):
    text = changed(model, lambda m: m["objects"][0]["attributes"].append([name, 1]))
    assert "$.objects[0].attributes[" in text


def test_messages_about_names():
    module = tg.Module()
    module.signatures = 1
    with pytest.raises(SignatureError, match=r"'signatures' of an attribute of Module cannot be"):
        save(module, "unused")
    module = tg.Module()
    setattr(module, "a\u202eb", 1)
    with pytest.raises(SignatureError, match="it holds letters that do not print"):
        save(module, "unused")


def test_attributes_that_yield_to_what_was_saved(tmp_path):
    module = tg.Module()
    module.content, module.omitted, module.is_wrapper, module.function = 1, [2], 3, len
    module.__call__ = 5
    save(module, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert (loaded.content, loaded.omitted, loaded.is_wrapper) == (1, [2], 3)
    assert not callable(loaded)
    save(loaded, tmp_path / "again")
    contents = fuzz_loading.contents
    assert contents(tmp_path / "again") == contents(tmp_path / "m")
    assert copy.copy(loaded).content == 1


def test_what_is_called_is_a_function(model):
    text = changed(model, lambda m: attribute(m, "__call__").__setitem__(1, {"float": "1.0"}))
    assert text.endswith("a `__call__` must be a function")


def test_the_name_of_a_module(model):
    text = changed(model, lambda m: attribute(m, "_name").__setitem__(1, "a/b"))
    assert text.endswith("the name of a module must be a string without a slash")


def test_names_that_are_twins(model):
    text = changed(model, lambda m: m["objects"][0]["attributes"].append(["words", 1]))
    assert text == "tracegraph.json: $.objects[0].attributes: an attribute is given twice"


@pytest.mark.parametrize("name", ["", "a b", "a\u202eb", "1", "x" * 2000])
def test_names_of_classes(model, name):
    assert "$.objects[0].class: " in changed(
        model, lambda m: m["objects"][0].update({"class": name})
    )


@pytest.mark.parametrize("name", ["", "a\u202eb", "a\nb", "e\u0301"])
def test_names_of_functions_and_variables(model, name):
    for table in ("functions", "variables"):
        content = damage.manifest(model)
        content[table][0]["name"] = name
        damage.set_manifest(model, content)
        assert f"$.{table}[0].name: the name {name!r} " in refusal(model)
        content[table][0]["name"] = "x"
        damage.set_manifest(model, content)


# Values.

VALUES = [
    ({"list": [{"list": 1}]}, "it is an integer, and it must be a list"),
    ({}, "a value is an object with one name, and this one has 0"),
    ({"a": 1, "b": 2}, "a value is an object with one name, and this one has 2"),
    ([1], "it is a list, and it must be an object"),
    (1.5, "it is a number, and it must be an object"),
    ("\ud800", "the string holds half of a pair of surrogates"),
    ({"int": "7"}, "the integer 7 is written without quotes"),
    ({"int": "9" * 5000}, "the integer has 5000 digits, more than 4000"),
    ({"int": "0x10"}, "'0x10' is not an integer"),
    ({"int": "\u0663" * 20}, "is not an integer"),
    (2**60, 'is written {"int": "1152921504606846976"}'),
    ({"float": "1.50"}, "the number '1.50' is written 1.5"),
    ({"float": "1_0"}, "the number '1_0' is written 10.0"),
    ({"float": "x"}, "'x' is not a number"),
    ({"float": 1}, "it is an integer, and it must be a string"),
    ({"complex": ["1.0"]}, "it has 1 entries, and it must have 2"),
    ({"bytes": "abc"}, "'abc' are not bytes in hexadecimal digits"),
    ({"bytes": "AB"}, "'AB' are not bytes in hexadecimal digits"),
    ({"dtype": "f33"}, "it is 'f33', and it must be one of bool, i8"),
    ({"type": "f32[-1]"}, ""),
    ({"type": "f32[1,,2]"}, ""),
    ({"type": "f32[" + "1," * 70 + "1]"}, "a tensor has at most 64 axes, and this shape has 71"),
    ({"type": f"f32[{2**63}]"}, "larger than any tensor"),
    ({"type": "f32[b+a]"}, "the type 'f32[b+a]' is written f32[a+b]"),
    ({"type": "f32[" + "a*" * 600 + "a]"}, "is not a size"),
    ({"shape": ["4"]}, "the size '4' is written 4"),
    ({"shape": ["2*"]}, ""),
    ({"shape": [-1]}, "it is -1, and it must be from 0"),
    ({"shape": [None] * 65}, "it has 65 axes, more than 64"),
    ({"spec": {"shape": None, "dtype": "token", "name": None}}, "no tensor is a token"),
    ({"spec": {"shape": [1] * 65, "dtype": "f32", "name": None}}, "65 axes, more than 64"),
    ({"dict": [["a", 1], ["a", 2]]}, "the key 'a' is given twice"),
    ({"dict": [[1, 1], [True, 2]]}, "the key True is given twice"),
    ({"dict": [[{"list": []}, 1]]}, "the key has no hash"),
    ({"dict": [["a"]]}, "it has 1 entries, and it must have 2"),
    ({"ordered_dict": [["a", 1], ["a", 2]]}, "the key 'a' is given twice"),
    ({"default_dict": {"default": "open", "items": []}}, "it is 'open', and it must be one of"),
    ({"default_dict": {"default": None}}, "items"),
    ({"namedtuple": {"name": "P", "fields": [["class", 1]]}}, "'class' is not a name"),
    ({"namedtuple": {"name": "P", "fields": [["_x", 1]]}}, "no field can be called _x"),
    ({"namedtuple": {"name": "P", "fields": [["x", 1], ["x", 2]]}}, "two fields have one name"),
    ({"namedtuple": {"name": "P", "fields": [["\ufb01", 1], ["fi", 2]]}}, "is not a name"),
    ({"dataclass": {"name": "D", "fields": [["__class__", 1]]}}, "be called __class__"),
    ({"dataclass": {"name": "D", "fields": [["__dict__", 1]]}}, "be called __dict__"),
    ({"dataclass": {"name": "D\n", "fields": []}}, r"'D\n' is not a name"),
    ({"dataclass": {"name": "D", "fields": [[f"x{i}", i] for i in range(2000)]}}, "more than 500"),
    ({"object": -1}, "it is -1, and it must be from 0 to 1"),
    ({"object": 2}, "it is 2, and it must be from 0 to 1"),
    ({"function": 99}, "it is 99, and it must be from 0 to"),
    ({"variable": 1}, "it is 1, and it must be from 0 to 0"),
    ({"tensor": "none"}, "there is no constant 'none'"),
    ({"array": "none"}, "there is no constant 'none'"),
    ({"asset": "../x"}, "it names the file '../x', which is not in the list of files"),
    ({"result": 0}, "there is no kind of value 'result'"),
    ({"opaque": 1}, "it is an integer, and it must be a string"),
    ({"opaque": "a\nb"}, "holds letters that do not print"),
    ({"scalar": 1}, "it is an integer, and it must be a string"),
    ({"scalar": "f32 1"}, "'f32 1' is not a scalar, such as 'f32 2.5'"),
    ({"scalar": "f32[1]{1.0}"}, "is not a scalar"),
    ({"scalar": "i8 128"}, "out of the range of int8"),
    ({"scalar": 'opaque"x"'}, "is not a scalar"),
    ({"scalar": "[" * 60}, "nested more than 50 deep"),
    ({"scalar": "f32 1.0 "}, "is not a scalar"),
]


@pytest.mark.parametrize(("value", "fact"), VALUES, ids=[str(i) for i in range(len(VALUES))])
def test_values(model, value, fact):
    text = changed(model, lambda m: attribute(m, "plain").__setitem__(1, value))
    assert fact in text
    assert text.startswith("tracegraph.json: $.objects[0].attributes[") or "64 bits" in text


def test_many_classes_are_refused(model):
    rows = [{"dataclass": {"name": f"D{i}", "fields": []}} for i in range(3000)]
    text = changed(model, lambda m: attribute(m, "plain").__setitem__(1, {"list": rows}))
    assert "there are more than 250 kinds of namedtuples and dataclasses" in text


def test_what_would_be_refused_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("tracegraph.archive.limits.MOST_VALUES", 1000)
    deep = []
    for _ in range(150):
        deep = [deep]
    for value, fact in (
        (deep, "nested more than 200 deep"),
        ([0] * 2000, "more than 1000"),
    ):
        module = tg.Module()
        module.value = value
        with pytest.raises(SignatureError, match=fact):
            save(module, tmp_path / "m")
        assert not list((tmp_path / "m").glob("*.json"))
    module = tg.Module()
    module.wide, module.text = 10**4000, np.array(["a"])
    save(module, tmp_path / "m")
    with pytest.raises(AttributeError, match="'wide' was an int, which no file can hold"):
        load(tmp_path / "m").wide  # noqa: B018
    with pytest.raises(AttributeError, match="'text' was an array of str32"):
        load(tmp_path / "m").text  # noqa: B018


# Functions and variables.


def trace(content, name="f", number=0):
    return next(row for row in content["functions"] if row["name"] == name)["traces"][number]


def graph_of(content, name):
    return trace(content, name)["graph"]


FUNCTIONS = [
    (
        lambda m: trace(m).update(graph="none"),
        "$.functions[1].traces[0].graph: it is 'none', and it",
    ),
    (
        lambda m: trace(m).update(graph=graph_of(m, "add")),
        "the graph has 2 outputs, and 7 are described",
    ),
    (lambda m: trace(m)["variables"].reverse(), "input 1 of the graph is f32[], and u32[2] is"),
    (
        lambda m: trace(m)["variables"].append({"variable": 0}),
        "variables: a variable is given twice",
    ),
    (
        lambda m: trace(m)["variables"].append({"variable": 9}),
        "it is 9, and it must be from 0 to 3",
    ),
    (lambda m: trace(m)["variables"].append({"argument": 0}), "the argument 0 is not a Variable"),
    (
        lambda m: trace(m).update(assigned=[2, 0]),
        "the variables that are assigned are not in their",
    ),
    (
        lambda m: trace(m).update(assigned=[0, 0]),
        "the variables that are assigned are not in their",
    ),
    (lambda m: trace(m).update(assigned=[1, 2]), "is assigned f32[]"),
    (lambda m: trace(m).update(assigned=[0]), "has 7 outputs, and 6 are described"),
    (lambda m: trace(m).update(token=False), "the graph has 7 outputs, and 6 are described"),
    (lambda m: trace(m).update(checks=[]), "the graph has 7 outputs, and 4 are described"),
    (lambda m: trace(m)["checks"][0].update(operands=2**40), "it must be from 0 to 65535"),
    (lambda m: trace(m)["checks"][0].update(operands=1), "has 7 outputs, and 6 are described"),
    (lambda m: trace(m)["checks"][0].update(line=2**31), "it must be from 0 to 999999999"),
    (lambda m: trace(m)["checks"][0].update(file="/dev/zero"), "'/dev/zero' names a folder"),
    (lambda m: trace(m)["checks"][0].update(file="..\\x"), "names a folder"),
    (lambda m: trace(m).update(captures=["none"]), "there is no constant 'none'"),
    (lambda m: trace(m).update(results={"result": 1}), "the results are numbered in their order"),
    (lambda m: trace(m).update(results=5), "the results are numbered in their order"),
    (lambda m: trace(m).update(results=None), "the graph has 7 outputs, and 6 are described"),
    (
        lambda m: trace(m).update(results={"list": [{"result": 0}, {"result": 1}]}),
        "the graph has 7 outputs, and 8 are described",
    ),
    (lambda m: trace(m).update(arguments={"tuple": []}), "the arguments are a pair of a tuple and"),
    (lambda m: trace(m).update(arguments={"shape": None}), "the arguments are a pair of a tuple"),
    (lambda m: arguments(m, [1]), "each leaf says what it was traced for"),
    (lambda m: arguments(m, []), "the arguments do not fit the parameters: missing a required arg"),
    (lambda m: arguments(m, [{"value": None}]), "no trace is made for a value of this kind"),
    (lambda m: arguments(m, [{"value": {"list": [1]}}]), "no trace is made for a value of this"),
    (lambda m: arguments(m, [{"value": {"object": 0}}]), "there is no kind of value 'object'"),
    (lambda m: arguments(m, [given("token")]), "no argument is a token"),
    (lambda m: arguments(m, [given("f32[2]")]), "input 0 of the graph is f32[], and f32[2] is"),
    (lambda m: arguments(m, [given("f32[]", 5)]), "it is not a spec"),
    (lambda m: arguments(m, [given("f32[]", SPEC)]), "does not allow f32[]"),
    (lambda m: arguments(m, [given("f32[]")], {"dict": [["y", given("f32[]")]]}), "unexpected key"),
    (lambda m: arguments(m, [given("f32[]")], {"dict": [[1, given("f32[]")]]}), "do not fit"),
    (lambda m: stand_in(m, 0, alias=1), "it is 1, and it must be from 0 to 0"),
    (
        lambda m: stand_in(m, 1, alias=0),
        "the argument 1 is not a Variable, or is one that",
    ),
    (lambda m: stand_in(m, 1, alias=0, trainable=False), "one variable has two types"),
    (
        lambda m: trace(m, "add", 0).update(copy.deepcopy(trace(m, "add", 1))),
        "two traces are for the",
    ),
    (
        lambda m: function(m, "f").update(input_signature=5),
        "an input_signature is a tuple or a list",
    ),
    (lambda m: function(m, "f").update(input_signature={"shape": None}), "an input_signature is a"),
    (lambda m: function(m, "f").update(input_signature={"tuple": [1]}), "it holds 1"),
    (
        lambda m: function(m, "f").update(input_signature={"tuple": [SPEC]}),
        "none was made for the input_s",
    ),
    (lambda m: function(m, "f").update(traces=[]), "none was made for the input_signature"),
    (lambda m: function(m, "f").update(is_concrete=1), "it must be true or false"),
    (lambda m: function(m, "add").update(is_concrete=True), "a concrete function has one trace"),
    (
        lambda m: parameters(m, [{"name": "class", "kind": "var_keyword"}]),
        "is not a valid parameter",
    ),
    (
        lambda m: parameters(m, [{"name": "x", "kind": "none"}]),
        "it is 'none', and it must be one of",
    ),
    (lambda m: parameters(m, [{"name": "x", "kind": "var_keyword"}] * 2), ""),
    (lambda m: parameters(m, [parameter("e\u0301")]), "is written in several ways"),
    (lambda m: parameters(m, [parameter("\ufb01")]), "is written in several ways"),
    (
        lambda m: parameters(m, [parameter("x", default={"function": 0})]),
        "there is no kind of value",
    ),
    (
        lambda m: m["variables"][0].update(type="f32[2]"),
        "the weight is f32[1,1], and the variable is f32[2]",
    ),
    (
        lambda m: m["variables"][0].update(type="token"),
        "the weight is f32[1,1], and the variable is token",
    ),
    (lambda m: m["variables"][0].update(weight="none"), "there is no weight 'none'"),
    (lambda m: m["variables"][0].update(weight="open"), "two variables share one weight"),
    (lambda m: m["variables"][0].update(created=1), "two variables have the same place in"),
    (
        lambda m: m["variables"].pop(),
        "the weight 'generator/_state_variable' belongs to no variable",
    ),
    (
        lambda m: m["variables"][0].update(trainable=1),
        "it is an integer, and it must be true or fals",
    ),
    (lambda m: signature(m, function=0), "a signature must be a concrete function"),
    (lambda m: signature(m, function=99), "it is 99, and it must be from 0"),
]

SPEC = {"spec": {"shape": [2], "dtype": "f32", "name": None}}


def function(content, name):
    return next(row for row in content["functions"] if row["name"] == name)


def parameters(content, rows):
    function(content, "f")["parameters"] = rows


def parameter(name, **more):
    return {"name": name, "kind": "positional_or_keyword", **more}


def arguments(content, given, keywords=None):
    rows = [{"tuple": given}, {"dict": []} if keywords is None else keywords]
    trace(content)["arguments"] = {"tuple": rows}


def given(type, spec=None):
    return {"argument": {"type": type, "spec": spec}}


def stand_in(content, place, **fields):
    rows = trace(content, "add")["arguments"]["tuple"][0]["tuple"]
    rows[place]["stand_in"].update(fields)


def signature(content, **fields):
    content["signatures"]["s\u00e9"] = {"function": 0, "inputs": [], "outputs": [], **fields}


@pytest.mark.parametrize(("change", "fact"), FUNCTIONS, ids=[str(i) for i in range(len(FUNCTIONS))])
def test_functions_and_variables(originals, tmp_path, change, fact):
    text = changed(copied(originals["effects"], tmp_path), change)
    assert fact in text
    assert text.startswith("tracegraph.json: $.")


def test_signatures(originals, tmp_path):
    path = copied(originals["trained"], tmp_path)
    for change, fact in (
        ({"inputs": []}, "they do not name the 1 inputs"),
        ({"outputs": ["a", "b"]}, "they do not name the 1 outputs"),
        ({"inputs": [5]}, "it is an integer, and it must be a string"),
    ):
        content = damage.manifest(path)
        content["signatures"]["predict"].update(change)
        damage.set_manifest(path, content)
        assert fact in refusal(path)
        shutil.rmtree(path)
        path = copied(originals["trained"], tmp_path)
    assert "the name of the signature is empty" in changed(
        path, lambda m: m["signatures"].update({"": m["signatures"]["predict"]})
    )


# Sparse matrices.


@pytest.mark.parametrize(
    ("array", "fact"),
    [
        ("rows", "a matrix of (3,) by (3,) is given|its own|not in their order|outside|each a row"),
        ("columns", "an entry lies outside the matrix"),
        ("column_colours", "an entry lies outside the matrix"),
        ("products", "an entry lies outside the matrix"),
        ("places", "an entry lies outside the matrix"),
    ],
)
@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, 1, -7], [0, 2**62, 1], [0, 1, -(2**63)]])
def test_numbers_of_a_sparse_matrix(tmp_path, originals, array, fact, numbers):
    text = with_array(copied(originals["values"], tmp_path), array, np.array(numbers))
    assert any(part in text for part in fact.split("|"))


@pytest.mark.parametrize(
    ("numbers", "fact"),
    [
        (np.array([0, 1, 2], np.int8), "places in a matrix are lists of 64-bit integers"),
        (np.array([[0, 1, 2]]), "places in a matrix are lists of 64-bit integers"),
        (np.array([0.0, 1.0, 2.0]), "places in a matrix are lists of 64-bit integers"),
        (np.array([0, 1]), "each entry of a matrix has a row, a column, a product"),
        (np.array([2, 1, 0]), "the entries of a matrix are not in their order"),
        (np.array([0, 2, 1]), "the entries of a matrix are not in their order"),
    ],
)
def test_rows_of_a_sparse_matrix(tmp_path, originals, numbers, fact):
    assert fact in with_array(copied(originals["values"], tmp_path), "rows", numbers)


def with_array(path, name, numbers):
    """The refusal where a sparse result has other numbers."""
    file = damage.find(path, "constants")
    content = damage.manifest(path)
    matrix = trace(content, "sparse")["results"]["sparse_jacobian"]
    matrix[name] = "other"
    data, row = with_tensor(file.read_bytes(), "other", numbers)
    content["constants"]["other"] = {"file": file.name, **row}
    damage.set_manifest(path, content)
    damage.set_file(path, file, data)
    return refusal(path)


def with_tensor(data, name, array):
    """A file of tensors with one more, and what a manifest says of it."""
    head, rest = parts(data)
    raw = array.tobytes()
    kind = {"int64": ("I64", "i64"), "int8": ("I8", "i8"), "float64": ("F64", "f64")}
    stored, short = kind[array.dtype.name]
    offsets = [len(rest), len(rest) + len(raw)]
    head[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": offsets}
    row = {"dtype": short, "shape": list(array.shape), "sha256": hashlib.sha256(raw).hexdigest()}
    return packed(head, rest + raw), row


def parts(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def packed(head, rest, size=None):
    text = json.dumps(head).encode() if isinstance(head, dict) else head
    return struct.pack("<Q", len(text) if size is None else size) + text + rest


# Files of tensors.


def swapped(head):
    keys = [key for key in head if head[key]["data_offsets"][0] != head[key]["data_offsets"][1]]
    a, b = keys[:2]
    head[a]["data_offsets"], head[b]["data_offsets"] = (
        head[b]["data_offsets"],
        head[a]["data_offsets"],
    )


TENSORS = [
    lambda head, rest: packed(head, rest, 2**63),
    lambda head, rest: packed(head, rest, 10**8),
    lambda head, rest: packed(head, rest, 0),
    lambda head, rest: packed(b"[" * 100_000, rest),
    lambda head, rest: packed(b"not json", rest),
    lambda head, rest: packed(json.dumps(head).encode()[:-1] + b"," + extra(rest), rest),
    lambda head, rest: packed({**head, "more": row("U8", [1], 0, 1)}, rest),
    lambda head, rest: packed({**head, "more": row("U8", [4], len(rest), len(rest) + 4)}, rest),
    lambda head, rest: packed(
        {**head, "more": row("U8", [4], len(rest), len(rest) + 4)}, rest + b"1234"
    ),
    lambda head, rest: packed({}, rest),
    lambda head, rest: packed({}, b""),
    lambda head, rest: packed(head, rest[:-1]),
    lambda head, rest: packed(head, rest + b"x"),
    lambda head, rest: packed(each(head, "dtype", "F8_E4M3"), rest),
    lambda head, rest: packed(each(head, "dtype", "none"), rest),
    lambda head, rest: packed(each(head, "shape", [2**40, 2**40]), rest),
    lambda head, rest: packed(each(head, "shape", [2**63]), rest),
    lambda head, rest: packed(each(head, "shape", [-1]), rest),
    lambda head, rest: packed(each(head, "shape", [1] * 500), rest),
    lambda head, rest: packed(each(head, "shape", []), rest),
    lambda head, rest: packed(each(head, "data_offsets", [0, 4]), rest),
    lambda head, rest: packed(each(head, "data_offsets", [4, 0]), rest),
    lambda head, rest: packed(each(head, "data_offsets", [0, 2**63]), rest),
    lambda head, rest: packed(each(head, "data_offsets", []), rest),
    lambda head, rest: b"",
    lambda head, rest: b"\0" * 7,
    lambda head, rest: b"\0" * 100,
]


def row(dtype, shape, start, stop):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def extra(rest):
    return b'"more": ' + json.dumps(row("U8", [1], 0, 1)).encode() + b"}"


def each(head, field, value):
    return {key: {**row, field: value} for key, row in head.items()}


@pytest.mark.parametrize("number", range(len(TENSORS)))
@pytest.mark.parametrize(("name", "stem"), [("trained", "weights"), ("values", "constants")])
def test_files_of_tensors(originals, tmp_path, name, stem, number):
    model = copied(originals[name], tmp_path)
    file = damage.find(model, stem)
    new = damage.set_file(model, file, TENSORS[number](*parts(file.read_bytes())))
    text = refusal(model)
    assert new.name in text or "tracegraph.json: $" in text


def test_tensors_that_changed_places(originals, tmp_path):
    path = copied(originals["trained"], tmp_path)
    file = damage.find(path, "weights")
    head, rest = parts(file.read_bytes())
    twins = [key for key in head if head[key]["shape"] == [2]][:2]
    a, b = (head[key]["data_offsets"] for key in twins)
    rest = bytearray(rest)
    rest[a[0]] ^= 1
    damage.set_file(path, file, packed(head, bytes(rest)))
    loaded = load(path)  # the file is what the manifest says, and the tensor is not
    with pytest.raises(LoadError, match="was changed: its SHA-256 is"):
        [variable.numpy() for variable in loaded.variables]
    assert b != a


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (
            lambda row: row.update(dtype="f64"),
            "has ('F32', (3, 2)), and f64[3,2] is ('F64', (3, 2))",
        ),
        (lambda row: row.update(dtype="c128"), "and c128[3,2] is ('F64', (3, 2, 2))"),
        (lambda row: row.update(dtype="bf16"), "and bf16[3,2] is ('BF16', (3, 2))"),
        (lambda row: row.update(dtype="token"), "it is 'token', and it must be one of bool"),
        (lambda row: row.update(shape=[2, 3]), "and f32[2,3] is ('F32', (2, 3))"),
        (lambda row: row.update(shape=[2**50]), "it must be from 0 to 281474976710655"),
        (lambda row: row.update(shape=[1] * 80), "it has 80 axes, more than 64"),
        (lambda row: row.update(sha256="f" * 64), "was changed: its SHA-256 is"),
        (lambda row: row.update(file="none"), "it is 'none', and it must be one of weights-"),
    ],
)
def test_what_is_said_of_tensors(originals, tmp_path, change, fact):
    path = copied(originals["trained"], tmp_path)
    content = damage.manifest(path)
    change(next(row for row in content["weights"].values() if row["shape"] == [3, 2]))
    damage.set_manifest(path, content)
    with pytest.raises(LoadError) as caught:
        [variable.numpy() for variable in load(path).variables]
    assert fact in str(caught.value)


# Graphs.

GRAPHS = [
    (("sin(", "none("), "there is no op none"),
    (("sin(", "sin<a=1>("), "sin has no attribute a"),
    (("body=@outer,", "body=@none,"), "the graph @none is not defined above"),
    (("body=@outer,", "body=@lambda_,"), "the graph @lambda_ is not defined above"),
    (("sources=[0]", "sources=[1]"), "are not distinct differentiable inputs"),
    (("tanh(%x)", "tanh(%x, %x)"), "tanh: it takes 1 operands, and 2 are given"),
    (("tanh(%x)", "tanh(%y)"), "the value %y is not defined above in this graph"),
    (("%x: f32[d0,2])", "%x: f32[d1,2])"), ""),
    (("f32 2.0", "f32 1e999"), "is out of the range of float32"),
    (("f32 2.0", 'opaque"os.system"'), "not np.ndarray"),
    (("exponent=2", "exponent=" + "9" * 5000), ""),
    (("f32[d0,2]", f"f32[{2**64},2]"), "is larger than any tensor"),
    (("fuzz_loading.py:", "/etc/passwd:"), "names a folder"),
    (("@outer", "@\u202eouter"), "a graph must begin here"),
    (("@outer", "@e\u0301"), "a graph must begin here"),
    (("return %0", "return"), "returns (), and line"),
    (("graph @inner(", "graph @outer("), "there are two graphs @outer"),
]


@pytest.mark.parametrize(("change", "fact"), GRAPHS, ids=[str(i) for i in range(len(GRAPHS))])
def test_graphs(originals, tmp_path, change, fact):
    path = copied(originals["custom"], tmp_path)
    new = damage.set_text(path, lambda text: text.replace(change[0], change[1], 1))
    text = refusal(path)
    assert fact in text
    assert text.startswith(f"{new.name}: line ") or "tracegraph.json: $" in text


def test_a_whole_message(originals, tmp_path):
    path = copied(originals["custom"], tmp_path)
    new = damage.set_text(path, lambda text: text.replace("sin(%x)", "sim(%x)", 1))
    with pytest.raises(LoadError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path / new.name}: line ")
    assert ": there is no op sim" in str(caught.value)


def test_a_size_that_nothing_gives(originals, tmp_path):
    path = copied(originals["shapes"], tmp_path)
    text = "graph @{0}() -> (i32[]) {{\n  %0 = dim_size<size=q>() : i32[]\n  return %0\n}}\n"
    content = damage.manifest(path)
    content.update(root={"function": 0}, signatures={}, constants={})
    trace = content["functions"][0]["traces"][0]
    content["functions"] = [{"name": "f", "parameters": [], "traces": [trace]}]
    trace.update(arguments={"tuple": [{"tuple": []}, {"dict": []}]}, graph="f", variables=[])
    trace.update(results={"result": 0}, captures=[])
    content["files"] = {k: v for k, v in content["files"].items() if k.startswith("graph")}
    damage.set_manifest(path, content)
    damage.set_text(path, lambda _: text.format("f"))
    assert "no input of @f gives the size q a value" in refusal(path)


# Effects: printing to the two streams, and nothing else.

PRINT = 'host_call<function=["print",["before ","\\n"],3,"stdout"], types=[]>'
CALLS = [
    'host_call<function=["print",["before ","\\n"],3,"file:///tmp/x"], types=[]>',
    'host_call<function=["print",["before ","\\n"],3,"modules"], types=[]>',
    'host_call<function=["print",["before ","\\n"],3,"__stdout__"], types=[]>',
    'host_call<function=["print",["before "],3,"stdout"], types=[]>',
    'host_call<function=["print",["before ",1],3,"stdout"], types=[]>',
    'host_call<function=["print",["before ","\\n"],-2,"stdout"], types=[]>',
    'host_call<function=["print",["before ","\\n"],3,"stdout"], types=[], is_differentiable=true>',
    'host_call<function=["print",["before ","\\n"],3], types=[]>',
    'host_call<function=["exec","import os"], types=[]>',
    'host_call<function=["__import__","os"], types=[]>',
    'host_call<function=["Template"], types=[]>',
    "host_call<function=[], types=[]>",
    "host_call<function=[[]], types=[]>",
    'host_call<function="print", types=[]>',
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_other_functions_than_printing(originals, tmp_path, call):
    path = copied(originals["effects"], tmp_path)
    damage.set_text(path, lambda text: text.replace(PRINT, call))
    assert "host_call" in refusal(path)


@pytest.mark.parametrize(
    "call",
    [
        'host_call<function=opaque"os.system", types=[]>',
        'host_call<function=["print",["before ","\\n"],3,opaque"file:///tmp/x"], types=[]>',
    ],
)
def test_what_has_a_name_alone_does_nothing(originals, tmp_path, call):
    path = copied(originals["effects"], tmp_path)
    damage.set_text(path, lambda text: text.replace(PRINT, call))
    loaded = load(path)
    with pytest.raises((LoadError, TraceError), match=r"the name alone|is not a stream to"):
        loaded.f(1.0)
    with pytest.raises(TraceError, match="no file can hold more than its name"):
        save(loaded, tmp_path / "again")


def test_a_file_that_is_printed_to_is_no_data(tmp_path):
    path = tmp_path / "printed"
    f = tg.function(lambda x: tg.print(x, output_stream=f"file://{path}"))
    graph = f.get_concrete_function(tg.TensorSpec([])).graph
    assert f'opaque"file://{path}"' in str(graph)
    assert str(tg.Graph.from_text(str(graph))) == str(graph)
    f(1.5)
    assert path.read_text() == "1.5\n"
    with pytest.raises(
        TraceError, match=r"writes to file://.* when it runs, and no file can hold it"
    ):
        save(f, tmp_path / "m")


def test_a_place_is_not_looked_up(originals, tmp_path, monkeypatch):
    # The name of a file in a graph is that of another machine: here it may be a pipe.
    path = copied(originals["effects"], tmp_path)
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "fuzz_loading.py")
    with pytest.raises(ValueError, match=r"too large.*\(traced at fuzz_loading\.py:\d+\)\n  at "):
        load(path).f(11.0)


# What takes long.


def test_calls_within_calls_are_loaded_in_linear_time(tmp_path):
    """2 ** 40 sines: to run them would take for ever, to load them does not."""
    f = tg.function(lambda x: tg.sin(x), input_signature=[tg.TensorSpec([])])
    save(f, tmp_path / "m")
    graph = "graph @g{0}(%x: f32[]) -> (f32[]) {{\n{1}  return %1\n}}\n"
    first = graph.format(0, "  %0 = sin(%x) : f32[]\n  %1 = sin(%0) : f32[]\n")
    calls = "  %0 = call<body=@g{0}>(%x) : f32[]\n  %1 = call<body=@g{0}>(%0) : f32[]\n"
    text = "\n".join([first, *(graph.format(i + 1, calls.format(i)) for i in range(40))])
    damage.set_text(tmp_path / "m", lambda _: text)
    content = damage.manifest(tmp_path / "m")
    content["functions"][0]["traces"][0]["graph"] = "g40"
    damage.set_manifest(tmp_path / "m", content)
    start = time.process_time()
    loaded = load(tmp_path / "m")
    save(loaded, tmp_path / "again")
    assert time.process_time() - start < 2
    assert loaded.content.get_concrete_function(tg.TensorSpec([])).graph.name == "g40"


def reshapes(count, terms):
    """A text that turns matrices, the number of whose elements is a long polynomial."""
    inputs, nodes = [], []
    for i in range(count):
        a, b = ("+".join([f"{letter}{k}" for k in range(terms)]) + f"+{i + 1}" for letter in "ab")
        inputs.append(f"%x{i}: f32[{a},{b}]")
        nodes.append(f"  %{i} = reshape<shape=[{b},{a}]>(%x{i}) : f32[{b},{a}]\n")
    return f"graph @f({', '.join(inputs)}) -> () {{\n{''.join(nodes)}  return\n}}"


def test_sizes_that_multiply_are_refused_or_quick():
    start = time.process_time()
    tg.Graph.from_text(reshapes(100, 20))
    with pytest.raises(LoadError, match="is too long a polynomial"):
        tg.Graph.from_text(reshapes(1, 60))
    assert time.process_time() - start < 5


LIMITED = """
import sys
import tracegraph as tg
from benchmarks.memory import peak  # of this program alone: getrusage begins with what started it
from tracegraph.errors import LoadError
plain, *paths = sys.argv[1:]
tg.saved_model.save(tg.Module(), plain)
tg.saved_model.load(plain)
before = peak()
for path in paths:
    try:
        tg.saved_model.load(path)
    except LoadError as error:
        told = str(error)[:200].splitlines()[0]
        print(peak() - before, told)
"""
LARGE = {
    "count": (
        "graph @f() -> (f32[]) {\n  %0 = iota<size=9223372036854775807, dtype=f32>() : f32[2]\n"
    ),
    "constant": (
        "graph @f(%x: f32[]) -> (f32[]) {\n  %0 = constant<value=f32[99999999999]{1}>() : f32[2]\n"
    ),
    "size": "graph @f(%x: f32[" + "9" * 18 + "]) -> (f32[]) {\n",
    "line": "graph @f(%x: f32[]) -> (f32[]) {\n  %0 = sin(%x) : f32[] at a.py:999999999999999\n",
    "lists": "graph @f(%x: f32[]) -> (f32[]) {\n"
    + "  %0 = constant<value="
    + "[" * 10**6
    + ">() : f32[]\n",
    "depth": "graph @f(%x: f32[" + "max(a," * 10**5 + "1" + ")" * 10**5 + "]) -> (f32[]) {\n",
}


def test_nothing_large_is_made_before_it_is_refused(tmp_path):
    for name, text in LARGE.items():
        save(tg.function(lambda x: x, input_signature=[tg.TensorSpec([])]), tmp_path / name)
        damage.set_text(tmp_path / name, lambda _, text=text: text)
    paths = [tmp_path / name for name in ("plain", *LARGE)]
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    # The most that was taken so far: each takes no more than that.
    for path, line in zip(paths[1:], found.stdout.splitlines(), strict=True):
        megabytes, told = line.split(" ", 1)
        assert float(megabytes) < 60
        assert str(path) in told
