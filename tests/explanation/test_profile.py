"""`tg.profile`: the line that is slow is the one that it names."""

import gc
import inspect
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import tracegraph as tg
from lowering.profiling import profile_file, profiler
from lowering.profiling.profile_file import Event
from tracegraph.eager import pending

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

X = np.random.default_rng(0).normal(size=(400, 400)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Lets go of the programs of earlier files, which JAX keeps too: XLA writes all that are alive
    into each profile, which takes a second for two thousand of them."""
    pending._programs = pending._Programs(pending._PROGRAM_LIMIT)
    jax.clear_caches()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def line_of(function, mark):
    """`file:line` of the line of a function that ends in a mark."""
    lines, start = inspect.getsourcelines(getattr(function, "python_function", function))
    place = next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return f"test_profile.py:{start + place}"


@tg.function
def sorts(x):
    y = tg.tanh(x) * 2.0
    with tg.name_scope("slow"):
        z = tg.sort(tg.tile(y, [1, 3]), axis=-1)  # slow
    return tg.reduce_sum(z) + 1.0


@pytest.fixture(scope="module")
def of_sorts():
    return tg.profile(sorts, tg.constant(X))


def test_a_slow_line_is_found():
    def measured():
        start = time.perf_counter()
        profile = tg.profile(sorts, tg.constant(X))
        return profile.seconds, time.perf_counter() - start, profile

    # On a busy machine any line may have to wait: the quickest of three runs did so least.
    _, limit, profile = min((measured() for _ in range(3)), key=lambda x: x[0])
    line = profile.lines[0]
    assert line.name == line_of(sorts, "slow")
    assert line.seconds > 0.5 * profile.seconds
    assert profile.scopes[0].name == "slow"
    assert profile.ops[0].name == "sort"
    assert 0 < profile.elapsed < limit
    assert str(profile).splitlines()[2].endswith("z = tg.sort(tg.tile(y, [1, 3]), axis=-1)  # slow")
    shares = (profile.lines, profile.scopes, profile.ops)
    for found in shares:
        assert sum(x.seconds for x in found) == pytest.approx(profile.seconds)
        assert sorted(found, key=lambda x: -x.seconds) == [*found]


def test_work_is_over_before_what_takes_its_result_begins(monkeypatch):
    """On CPUs the thread that ends one kernel may run the next before it tells the end."""

    module = SimpleNamespace(
        name="jit_f",
        program=1,
        instructions=dict.fromkeys(["tanh", "bitcast", "sort", "other"]),
        users={"tanh": ["bitcast", "other"], "bitcast": ["sort"]},
    )

    def event(name, start, seconds, told_end):
        return Event("jit_f", 1, name, True, "thread", start, seconds, told_end)

    events = [
        *(event("tanh", 1.0, 0.1, 9.0), event("sort", 2.0, 3.0, 5.5), event("other", 8.0, 0.5, 0)),
        *(event("tanh", 11.0, 0.1, 12.0), event("sort", 14.0, 3.0, 0)),  # in the next iteration
    ]
    monkeypatch.setattr(profiler, "read_profile", lambda space: (events, [module]))
    found = [(run.name, run.seconds) for run in profiler._operations(b"")]
    assert found == [("tanh", 1.0), ("sort", 3.5), ("other", 0.5), ("tanh", 1.0), ("sort", 3.0)]


@tg.function
def slope(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        h = tg.sort(x, axis=-1)  # forward
        for _ in range(6):
            h = h @ x  # both
        y = tg.reduce_sum(h)
    return tape.gradient(y, x)


def test_forward_and_backward_are_told_apart():
    profiles = [tg.profile(slope, tg.constant(X)) for _ in range(3)]
    profile = profiles[0]
    lines = [line for found in profiles for line in found.lines]
    both = [line for line in lines if line.name == line_of(slope, "both")]
    assert all(line.forward > 0 for line in both)
    # Two products for each of the forward pass. Other work on the machine slows single runs.
    assert min(line.backward for line in both) > min(line.forward for line in both)
    assert any(cost.is_backward and cost.roles == ("vjp",) for cost in profile.costs)


def sorted_backwards(x):
    return x * 2.0, lambda g: tg.sort(g * x, axis=-1)  # written


@tg.function
def slope_of_mine(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(tg.custom_gradient(sorted_backwards)(x))
    return tape.gradient(y, x)


def test_what_a_custom_gradient_computes_is_backward():
    profile = tg.profile(slope_of_mine, tg.constant(X))
    line = profile.lines[0]
    assert line.name == line_of(sorted_backwards, "written")
    assert line.backward > 0 and line.forward == 0
    costs = json.loads(profile.to_json())["costs"]
    assert costs[0]["op"] == "sort" and costs[0]["is_backward"]


@tg.function
def fused(x):
    for _ in range(20):
        x = tg.math.pow(tg.sin(x) + 2.0, x)  # slow
    return x * 2.0 + 1.0


def test_what_xla_fuses_shares_its_time():
    """A fusion has the name of its last instruction, which is the cheapest of these."""
    profile = tg.profile(fused, tg.constant(X))
    assert profile.lines[0].name == line_of(fused, "slow")
    assert profile.lines[0].seconds > 0.8 * profile.seconds


@tg.function
def loops(x):
    for _ in tg.range(5):
        x = tg.cond(
            tg.reduce_sum(x) > -1e30,
            lambda x=x: tg.sort(x, axis=-1),  # slow
            lambda x=x: x,
        )
    return x


def test_time_in_loops_and_branches_is_that_of_the_line_inside():
    profile = tg.profile(loops, tg.constant(X))
    assert profile.lines[0].name == line_of(loops, "slow")
    assert profile.seconds < 5 * profile.elapsed  # a loop is not counted beside its body


def test_functions_that_are_not_decorated_and_their_variables():
    total = tg.Variable(tg.zeros([400, 400]))

    def train(x):
        for _ in range(3):
            total.assign_add(tg.sort(x, axis=-1))  # slow

    profile = tg.profile(train, tg.constant(X))
    assert profile.lines[0].name == line_of(train, "slow")
    np.testing.assert_allclose(total, 6 * np.sort(X), rtol=1e-6)  # it is called twice
    with pytest.raises(TypeError, match=r"train is not a @tg.function, so there is no graph of it"):
        profile.to_html()


def test_functions_of_one_name_are_told_apart():
    fs = [tg.function(lambda x: tg.sort(x) * 2.0), tg.function(lambda x: tg.sort(x) * 2.0)]

    def both(x):
        return [f(x) for f in fs for _ in range(3)]

    profile = tg.profile(both, tg.constant(X))
    (place,) = {cost.line for cost in profile.costs if cost.op == "sort"}
    assert place.startswith("test_profile.py:")


MODEL = """
import tracegraph as tg

def computed(x):
    return tg.{op}(x)
"""


def test_files_of_one_name_are_told_apart(tmp_path):
    computed = []
    for folder, op in (("sorting", "sort"), ("adding", "abs")):
        file = tmp_path / folder / "model.py"
        file.parent.mkdir()
        file.write_text(MODEL.format(op=op))
        names = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        computed.append(names["computed"])
    profile = tg.profile(tg.function(lambda x: [f(x) for f in computed]), tg.constant(X))
    first, second = profile.lines[:2]
    assert (first.name, second.name) == ("sorting/model.py:5", "adding/model.py:5")
    assert first.seconds > 2 * second.seconds
    assert str(profile).splitlines()[2].endswith("sorting/model.py:5  return tg.sort(x)")
    page = profile.to_html()
    data = json.loads(page.split('type="application/json" id="data">')[1].split("</script>")[0])
    found = {code: s for (_, _, _, code, *_), s in zip(data["places"], data["seconds"])}
    assert found["return tg.sort(x)"] == pytest.approx(first.seconds)
    assert found["return tg.abs(x)"] == pytest.approx(second.seconds)


@tg.function
def in_scopes(x):
    for scope in ("body", "while", "a.py:3", "a.py:3'", "jit(f)", "branch_1_fun/remat"):
        with tg.name_scope(scope):
            x = tg.sort(x * -1.0)
    return x


def test_scopes_may_be_called_as_jax_calls_its_parts_or_as_lines():
    profile = tg.profile(in_scopes, tg.constant(X))
    names = {"body", "while", "a.py:3", "a.py:3'", "jit(f)", "branch_1_fun.remat"}
    assert {share.name for share in profile.scopes} == names
    assert {cost.line.split(":")[0] for cost in profile.costs} == {"test_profile.py"}


def test_the_time_of_a_call_is_that_of_one():
    """The result of the first call, which is dropped, is waited for before the second."""
    f = tg.function(lambda x: tg.sort(tg.tile(x, [4, 1])))
    profiles = [tg.profile(f, tg.constant(X)) for _ in range(3)]
    assert min(found.elapsed / found.seconds for found in profiles) < 1.5


class Sorter(tg.Module):
    @tg.function
    def __call__(self, x):
        return tg.sort(x)


def test_what_a_tg_function_is_called_by_has_a_page():
    for f in (Sorter(), sorts.get_concrete_function(tg.TensorSpec([400, 400]))):
        profile = tg.profile(f, tg.constant(X))
        assert '"seconds":' in profile.to_html()
        assert "tg.sort(" in str(profile)


READ_FROM_DISK = """
import sys
import tracegraph as tg
tg.config.set_compilation_cache(sys.argv[1])
f = tg.function(lambda x: tg.sort(x))
print(tg.profile(f, tg.ones([100, 100])))
"""


def test_lines_of_programs_from_disk_are_those_of_when_they_were_compiled(tmp_path):
    script = tmp_path / "script.py"
    for text, is_read in ((READ_FROM_DISK, False), ("# moved\n" + READ_FROM_DISK, True)):
        script.write_text(text)
        run = [sys.executable, str(script), str(tmp_path / "cache")]
        printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        assert ("(read from disk, with the lines of when it was compiled)" in printed) == is_read


def test_json_and_trace(tmp_path, of_sorts):
    profile = of_sorts
    data = json.loads(profile.to_json(tmp_path / "profile.json"))
    assert json.loads((tmp_path / "profile.json").read_text()) == data
    assert sum(cost["seconds"] for cost in data["costs"]) == pytest.approx(profile.seconds)
    # Which one is the dearest, a busy machine decides: see `test_a_slow_line_is_found`.
    assert max(data["costs"], key=lambda cost: cost["seconds"]) == data["costs"][0]
    assert "sort" in {cost["op"] for cost in data["costs"]}
    events = json.loads(profile.to_trace(tmp_path / "trace.json"))["traceEvents"]
    runs = [x for x in events if x["ph"] == "X"]
    assert sum(x["dur"] for x in runs) == pytest.approx(1e6 * profile.seconds)
    assert any(x["name"] == f"{line_of(sorts, 'slow')} sort" for x in runs)
    names = {x["tid"] for x in events if x["ph"] == "M"}
    assert {x["tid"] for x in runs} <= names


def test_the_page_has_the_seconds_of_each_line(of_sorts):
    page = of_sorts.to_html()
    data = json.loads(page.split('type="application/json" id="data">')[1].split("</script>")[0])
    seconds = {f"{file}:{line}": s for (file, line, *_), s in zip(data["places"], data["seconds"])}
    assert max(seconds, key=lambda place: seconds[place]) == of_sorts.lines[0].name
    assert seconds[line_of(sorts, "slow")] > 0
    assert '"seconds":' not in sorts.graph(X).to_html()


def test_wrong_uses():
    with pytest.raises(TypeError, match="5 is not a callable object"):
        tg.profile(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a function is being traced, which runs nothing"):
        tg.function(lambda x: tg.profile(sorts, x) and x)(tg.constant(X))
    profile = tg.profile(sorts, tg.constant(X))
    with pytest.raises(TypeError, match="by is 'files'"):
        profile.table("files")
    with pytest.raises(TypeError, match="most is an integer"):
        profile.table(most="all")


def test_one_profile_at_a_time(tmp_path):
    with jax.profiler.trace(str(tmp_path)):
        with pytest.raises(tg.errors.LoweringError, match="profiler does not start"):
            tg.profile(sorts, tg.constant(X))


def test_an_error_of_the_function_ends_the_profile():
    calls = []

    def fails(x):
        calls.append(x)
        if len(calls) == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tg.profile(fails, 1)
    assert tg.profile(sorts, tg.constant(X)).seconds > 0


def test_programs_that_did_not_run_are_not_read():
    """A profile has every program of the process, which may be thousands."""
    cut = b"\x0a\x05jit_f\x1a\x02\x12\x7f"  # the name, and an instruction that ends too early
    module = profile_file.CompiledModule(7, cut)
    assert (module.program, module.name) == (7, "jit_f")
    whole = profile_file.CompiledModule(7, b"\x0a\x05jit_f\x1a\x06\x12\x04\x0a\x02by")
    assert list(whole.instructions) == ["by"]


def test_integers_of_protocol_buffers():
    """The example of the specification of the format: 150 as `96 01`, after a tag of field 1."""
    assert list(profile_file.fields(bytes([0x08, 0x96, 0x01]))) == [(1, 150)]
    assert list(profile_file.fields(b"\x12\x07testing")) == [(2, b"testing")]
    assert profile_file.numbers(bytes([0x03, 0x8E, 0x02, 0x9E, 0xA7, 0x05])) == (3, 270, 86942)


def encoded(*parts):
    """A message of a protocol buffer: pairs of a field and an integer, a text or a message."""
    found = b""
    for field, value in parts:
        if isinstance(value, int):
            found += varint(field << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            found += varint(field << 3 | 2) + varint(len(data)) + data
    return found


def varint(number):
    found = []
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def test_an_instruction_ends_where_its_last_thread_ends():
    """XLA leaves an instruction once it has handed its work to other threads."""
    names = {1: "hlo_op", 2: "_p", 3: "_c"}
    kinds = [(5, encoded((1, n), (2, encoded((1, n), (2, name))))) for n, name in names.items()]
    long, short = 1 << 40, 1 << 33  # flows have such numbers
    begun = [
        encoded((2, 10**9), (3, 10**9), (4, encoded((1, 1), (5, op))), (4, encoded((1, 2), (4, x))))
        for op, x in (("sort.5", long), ("add.1", short), ("mul.2", 77))
    ]
    ends = [
        encoded((2, time), (4, encoded((1, 3), (4, x))))
        for time, x in ((9 * 10**9, long), (1_500_000_000, short))
    ]
    lines = [(3, encoded((2, "first"), *((4, x) for x in begun)))]
    lines += [(3, encoded((2, "second"), *((4, x) for x in ends)))]
    space = encoded((1, encoded((2, "/host:CPU"), *kinds, *lines)))
    found = [*profiler._operations(space)]
    assert [(x.name, x.thread) for x in found] == [
        (op, "first") for op in ("sort.5", "add.1", "mul.2")
    ]
    assert [x.seconds for x in found] == pytest.approx([8e-3, 1e-3, 1e-3])
