"""Patterns against numeric Jacobians, and colourings against their definition."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import tracegraph as tg
from lowering.program import graph_function
from tests.derived_graphs import vjp_graph
from tests.op_table import CASES, x
from tracegraph.core.sparsity_patterns import Pattern, everything, moved, union
from tracegraph.core.types import TOKEN, TensorType, float64, int32
from tracegraph.ir.builder import Builder
from tracegraph.ops import contract, effect, image
from tracegraph.ops.broadcast import zeros_of
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import ADD, MUL, SIN
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Reshape
from tracegraph.passes import colouring
from tracegraph.passes.colouring import (
    Colouring,
    colour,
    colour_both,
    colour_columns,
    colour_rows,
    colour_symmetric,
    symmetric_part,
)
from tracegraph.passes.sparsity import element_sources, pattern, row_sources

#: The same code is decorated again for each case.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last 5 calls")


def traced(function, *types):
    """The graph of a function of tensors; a shape stands for float64."""
    with Builder("f") as builder:
        full = [t if isinstance(t, TensorType) else TensorType(float64, t) for t in types]
        found = function(*(builder.input(type, f"x{i}") for i, type in enumerate(full)))
        return builder.finish(found if isinstance(found, (tuple, list)) else [found])


def dense(graph, *more):
    """The first output's pattern as a boolean matrix."""
    found = pattern(graph, *more)[0].to_dense()
    return matrix_of(found)


def matrix_of(found):
    """A boolean array with its axes but the last, the sources, made one."""
    return found.reshape(int(np.prod(found.shape[:-1])), found.shape[-1])


def from_dense(dense):
    """The pattern of a boolean array whose last axis is the sources."""
    *shape, total = dense.shape
    return Pattern.of_keys(np.flatnonzero(dense), shape, total)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.to_dense(), expected)


# The representation, against boolean arrays.

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


@st.composite
def booleans(draw, shape=None):
    """A boolean array, of which the last axis is the sources."""
    shape = draw(SHAPES) if shape is None else shape
    total = draw(st.integers(0, 5))
    return draw(arrays.arrays(bool, (*shape, total)))


@given(booleans())
def test_a_pattern_and_its_dense_form(p):
    found = from_dense(p)
    assert_same(found, p)
    assert (found.shape, found.total, found.count) == (p.shape[:-1], p.shape[-1], p.sum())
    assert_same(found.emptied(), np.zeros_like(p))
    flat = matrix_of(p)
    assert np.array_equal(np.argwhere(flat), np.stack([found.elements, found.sources], -1))


@given(booleans(), st.data())
def test_unions(p, data):
    q = data.draw(arrays.arrays(bool, p.shape))
    one, other = from_dense(p), from_dense(q)
    assert_same(one | other, p | q)
    assert_same(union(one, other, one, from_dense(p)), p | q)
    row = from_dense(p[:1])
    if len(p):
        assert_same(other | row, q | p[:1])


@given(booleans(), st.data(), st.booleans())
def test_unions_over_axes(p, data, keepdims):
    found = from_dense(p)
    axes = tuple(data.draw(st.sets(st.integers(0, found.ndim - 1))))
    assert_same(found.any(axes, keepdims), p.any(axis=axes, keepdims=keepdims))
    assert_same(found.any(keepdims=keepdims), found.any(range(found.ndim), keepdims).to_dense())
    assert_same(found.any(-1), p.any(axis=-2))


@given(booleans(), st.data(), st.booleans())
def test_accumulation(p, data, reverse):
    axis = data.draw(st.integers(0, p.ndim - 2))
    turned = np.flip(p, axis) if reverse else p
    expected = np.logical_or.accumulate(turned, axis)
    expected = np.flip(expected, axis) if reverse else expected
    assert_same(from_dense(p).accumulate(axis, reverse), expected)


@given(booleans(), st.data())
def test_taking_and_putting(p, data):
    found = from_dense(p)
    flat = matrix_of(p)
    places = data.draw(arrays.arrays(np.int64, 7, elements=st.integers(-1, len(flat) - 1)))
    expected = np.zeros((7, p.shape[-1]), bool)
    expected[places >= 0] = flat[places[places >= 0]]
    assert_same(found.take(places), expected)
    into = data.draw(arrays.arrays(np.int64, len(flat), elements=st.integers(0, 2)))
    expected = np.zeros((3, p.shape[-1]), bool)
    np.logical_or.at(expected, into, flat)
    assert_same(found.put(into, (3,)), expected)


@given(booleans(shape=(2, 3)), st.data())
def test_moves(p, data):
    q = data.draw(arrays.arrays(bool, (2, 1, p.shape[-1])))
    one, other = from_dense(p), from_dense(q)
    assert_same(moved(np.transpose, one), p.transpose(1, 0, 2))
    joined = moved(lambda a, b: np.concatenate([b, a], 1), one, other)
    assert_same(joined, np.concatenate([q, p], 1))
    sources = p.any(axis=(0, 1)) | q.any(axis=(0, 1))
    assert_same(everything((4,), [one, other]), np.tile(sources, (4, 1)))


# Patterns of random graphs: nothing is ever missed.

#: From which values an operand of each sample is made, so that no derivative is zero by chance.
RANGES = {
    "normal": (0.0, 2.0),
    "apart": (0.0, 2.0),
    "unit": (0.1, 0.7),
    "positive": (1.7, 0.4),
    "nonzero": (1.7, 0.4),
    "above_one": (1.7, 0.4),
}
TRIED = [
    case
    for case in CASES
    if "f" in case.kinds
    and case.against
    and all(operand.sample in RANGES for operand in case.operands)
    # Of equal eigenvalues, which random graphs make, derivatives are not defined.
    and case.family not in ("decomposition", "matrix_function")
]


def fitted(builder, pool, operand, data):
    """An operand made of elements of a tensor of the pool, or of the indices that it takes."""
    if operand.dtype is int32 and data.draw(st.booleans()):
        known = data.draw(arrays.arrays(np.int32, operand.shape, elements=st.integers(0, 3)))
        return constant(known)
    if operand.dtype is not None:
        return builder.input(operand.type(float64), f"k{len(builder.inputs)}")
    tensor = data.draw(st.sampled_from(pool))
    flat = Reshape((tensor.size,))(tensor) if tensor.ndim != 1 else tensor
    size = int(np.prod(operand.shape))
    start = data.draw(st.integers(0, flat.size - 1))
    chosen = Gather(0, 0)(
        flat, constant((np.arange(size) * 2 + start).astype(np.int32) % flat.size)
    )
    low, width = RANGES[operand.sample]
    values = ADD(MUL(SIN(chosen), _filled(chosen, width)), _filled(chosen, low))
    return Reshape(operand.shape)(values)


def _filled(like, value):
    return ADD(zeros_of(like), constant(np.full(like.type.shape, value)))


@st.composite
def programs(draw):
    """A graph of a few ops of the table, each on elements of what came before."""
    data = draw(st.data())
    with Builder("f") as builder:
        pool = [builder.input(TensorType(float64, (4,)), "x")]
        for case in data.draw(st.lists(st.sampled_from(TRIED), min_size=1, max_size=4)):
            found = case.op(*(fitted(builder, pool, operand, data) for operand in case.operands))
            found = found if isinstance(found, tuple) else (found,)
            new = [y for y in found if y.type.dtype is float64 and y.size]
            pool += new
        return builder.finish(pool[1:] or pool)


def by_numpy(graph, values):
    """The outputs, or None if an op has no rule for NumPy, or a matrix of zeros is solved."""
    env = dict(zip(graph.inputs, values, strict=True))
    for node in graph.nodes:
        try:
            found = node.op.numpy(*(np.asarray(env[v]) for v in node.inputs))
        except np.linalg.LinAlgError:
            return None
        if found is NotImplemented:
            return None
        env.update(zip(node.outputs, found if isinstance(found, tuple) else (found,)))
    return [np.asarray(env[y]).reshape(-1) for y in graph.outputs]


def random_values(graph, rng):
    """Numbers for the inputs of a random graph; integers are small, to serve as indices."""
    values = [
        rng.standard_normal(x.type.shape)
        if x.dtype is float64
        else rng.integers(0, 3, x.type.shape)
        for x in graph.inputs
    ]
    return [np.asarray(v, x.dtype.numpy_dtype) for v, x in zip(values, graph.inputs)]


def check_no_entry_is_missed(graph, seed):
    rng = np.random.default_rng(seed)
    values = random_values(graph, rng)
    start = by_numpy(graph, values)
    if start is None:
        return
    known = {i: v for i, v in enumerate(values) if i and rng.random() < 0.5}
    found = [p.to_dense() for p in pattern(graph, element_sources(graph, [0]), known)]
    for source in range(4):
        near = by_numpy(graph, [values[0] + 1e-4 * (np.arange(4) == source), *values[1:]])
        for entries, old, new in zip(found, start, near):
            depends = entries.reshape(-1, 4)[:, source]
            assert not ((old != new) & ~depends & ~np.isnan(old)).any(), graph.as_text()


@settings(max_examples=80, deadline=None)
@given(programs(), st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_entry_is_missed(graph, seed):
    check_no_entry_is_missed(graph, seed)


@pytest.mark.sweep
@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_entry_of_more_graphs_is_missed(graph, seed):
    check_no_entry_is_missed(graph, seed)


# Patterns of functions, against JAX's Jacobians.


def attention(v):
    return tg.nn.softmax(v @ tg.transpose(v)) @ v


def nested(v):
    @tg.function
    def inner(u, indices):
        return tg.gather(tg.sin(u), indices) * 2.0

    return inner(v[1:], tg.constant([2, 0])) + inner(v[:3], tg.constant([1, 1]))


def layer_norm(v):
    return (v - tg.reduce_mean(v, 1, keepdims=True)) / (
        tg.reduce_max(v * v, 1, keepdims=True) + 1.0
    )


def convolved(v):
    kernel = tg.ones([3, 3, 1, 2], tg.float64)
    return tg.nn.conv2d(tg.reshape(v, [1, 4, 4, 1]), kernel, 2, "SAME")


def pooled(v):
    return tg.nn.avg_pool2d(tg.reshape(v, [1, 4, 4, 1]), 2, 2, "VALID")


def stencil(v):
    padded = tg.pad(v, [[1, 1], [1, 1]])
    around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
    return around - v * v * v


def joined(v):
    rows = tg.split(v, 2, 0)
    return tg.concat([tg.reverse(rows[0], [1]), tg.roll(rows[1], 1, 1), tg.cumsum(v, 0)], 0)


FUNCTIONS = [
    (attention, (3, 2), False),
    (nested, (4,), True),
    (layer_norm, (2, 3), True),
    (convolved, (16,), True),
    (pooled, (16,), True),
    (stencil, (4, 4), True),
    (joined, (2, 3), True),
    (lambda v: tg.sort(v) + tg.where(v > 0.0, v, 2.0 * v), (4,), False),
    (lambda v: tg.tensor_scatter_nd_add(v * v, [[1], [1]], v[2:]), (4,), True),
    (lambda v: tg.matmul(v, tg.ones([3, 4], tg.float64)), (2, 3), True),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("function", "shape", "is_exact"), FUNCTIONS)
@pytest.mark.parametrize("order", [1, 2])
def test_patterns_of_functions(function, shape, is_exact, order):
    graph = traced(function, shape)
    if order == 2:  # the Hessian of a sum of squares
        graph = vjp_graph(traced(lambda v: tg.reduce_sum(function(v) ** 2), shape))
    rng = np.random.default_rng(0)
    numeric = np.zeros((1, 1), bool)
    with jax.enable_x64(True):
        rest = [jnp.ones(v.type.shape) for v in graph.inputs[1:]]
        jacobian = jax.jit(jax.jacobian(lambda v: graph_function(graph)(v, *rest)[0]))
        for _ in range(3):
            found = jacobian(jnp.asarray(rng.standard_normal(shape)))
            numeric = numeric | (np.asarray(found).reshape(-1, int(np.prod(shape))) != 0)
    assumed = dense(graph, element_sources(graph, [0]))
    assert not (numeric & ~assumed).any()
    if is_exact and order == 1:
        np.testing.assert_array_equal(assumed, numeric)


def test_known_indices_follow_from_inputs_that_are_known():
    graph = traced(lambda v, at: tg.gather(v, at + 1), (4,), TensorType(int32, (2,)))
    sources = element_sources(graph)
    assert dense(graph, sources).all()
    at = np.array([2, 0], np.int32)
    np.testing.assert_array_equal(dense(graph, sources, {1: at}), np.eye(4, dtype=bool)[at + 1])


def test_a_body_of_open_sizes_is_walked_at_the_sizes_of_the_call():
    @tg.function(input_signature=[tg.TensorSpec([None], tg.float64)])
    def inner(v):
        return v[1:] * v[:-1]

    graph = traced(lambda v: inner(v) + inner(inner(tg.pad(v, [[0, 1]]))), (4,))
    expected = [[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_array_equal(dense(graph), np.array(expected, bool))


def test_an_op_without_a_rule_is_dense():
    operation = effect.HostCall(np.sin, (TensorType(float64, (2,)),), True)
    graph = traced(lambda token, v: operation(token, v)[1], TOKEN, (3,))
    assert dense(graph).tolist() == [[True] * 3] * 2


def test_a_python_function_without_a_derivative_is_empty():
    operation = effect.HostCall(np.sin, (TensorType(float64, (2,)),), False)
    graph = traced(lambda token, v: operation(token, v)[1], TOKEN, (3,))
    assert not dense(graph).any()


def test_a_registered_gradient_is_dense(monkeypatch):
    graph = traced(lambda v, w: image.AdjustContrast()(v, w), (1, 2, 2, 2), ())
    assert not dense(graph).all()
    monkeypatch.setitem(tg.passes.registry._registered, "adjust_contrast", lambda op, g: g)
    assert dense(graph).all()


# Which sources.


def test_sources_are_chosen():
    graph = traced(lambda v, w: v * w, (3,), (3,))
    np.testing.assert_array_equal(dense(graph), np.tile(np.eye(3, dtype=bool), 2))
    for place in (0, 1):
        own = element_sources(graph, [place])
        np.testing.assert_array_equal(dense(graph, own), np.eye(3, dtype=bool))
    some = {1: np.array([1, -1, 0])}
    np.testing.assert_array_equal(dense(graph, some), [[0, 1], [0, 0], [1, 0]])
    assert dense(graph, {}).shape == (3, 0)


def mixes(function, *types):
    """Whether a row of the result depends on another row of the first input."""
    graph = traced(function, *types)
    (found,) = pattern(graph, row_sources(graph, 0))
    rows = found.elements // int(np.prod(found.shape[1:]))
    return bool((rows != found.sources).any())


def test_rows_as_sources_tell_whether_a_batch_is_mixed():
    assert not mixes(lambda v, w: tg.nn.relu(v @ w), (32, 5), (5, 7))
    assert not mixes(layer_norm, (8, 5))
    assert not mixes(lambda v: tg.sort(tg.cumsum(v, 1), 1), (8, 5))
    assert mixes(lambda v: v - tg.reduce_mean(v, 0), (8, 5))
    assert mixes(lambda v: tg.reverse(v, [0]), (8, 5))


def test_the_cost_goes_with_the_entries():
    count = 20_000

    def chain(v):
        for _ in range(4):
            v = tg.sin(v) * v + tg.pad(v[1:], [[0, 1]]) - tg.pad(v[:-1], [[1, 0]])
        return v

    (found,) = pattern(traced(chain, (count,)))
    assert found.count == 9 * count - 2 * (1 + 2 + 3 + 4)
    (found,) = pattern(traced(lambda v: tg.reduce_sum(chain(v)), (count,)))
    assert found.count == count
    image_type = TensorType(float64, (1, 100, 100, 1))
    conv = contract.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
    graph = traced(lambda v: conv(v, constant(np.ones((3, 3, 1, 1)))), image_type)
    assert pattern(graph)[0].count == (3 * 98 + 2 * 2) ** 2


# Colourings.


def nonzeros(matrix):
    return *np.nonzero(matrix), matrix.shape


def values_at(rows, columns, shape):
    rng = np.random.default_rng(0)
    matrix = np.zeros(shape)
    matrix[rows, columns] = rng.standard_normal(len(rows)) + 3.0
    return matrix


def seeds_of(colours, count):
    """One row per product: whether each column, or row, of the matrix takes part."""
    return colours == np.arange(count)[:, None]


def assert_recovers(found: Colouring, rows, columns, matrix):
    """Every nonzero is read where the colouring says, exactly: it stands alone there."""
    forward = seeds_of(found.column_colours, found.forward) @ matrix.T
    reverse = seeds_of(found.row_colours, found.reverse) @ matrix
    assert (len(forward), len(reverse)) == (found.forward, found.reverse)
    products = [*forward, *reverse]
    expected = matrix[rows, columns]
    read = [products[p][at] for p, at in zip(found.products, found.places, strict=True)]
    np.testing.assert_array_equal(np.array(read), expected)
    flat = np.concatenate([np.zeros(0), *products])
    np.testing.assert_array_equal(flat[found.positions], expected)


matrices = arrays.arrays(
    bool, st.tuples(st.integers(0, 9), st.integers(0, 9)), elements=st.booleans()
)
sparse_matrices = st.builds(
    lambda one, other, third: one & other & third,
    *(arrays.arrays(bool, (12, 10)) for _ in range(3)),
)


@settings(deadline=None)
@given(st.one_of(matrices, sparse_matrices))
def test_colourings_of_columns_and_rows(matrix):
    rows, columns, shape = nonzeros(matrix)
    for colour_side, lines in ((colour_columns, matrix), (colour_rows, matrix.T)):
        found = colour_side(rows, columns, shape)
        colours = found.column_colours if lines is matrix else found.row_colours
        for one, other in itertools.combinations(range(len(colours)), 2):
            if (lines[:, one] & lines[:, other]).any():
                assert colours[one] != colours[other]
        assert ((colours >= 0) == lines.any(axis=0)).all()
        assert_recovers(found, rows, columns, values_at(rows, columns, shape))


@settings(deadline=None)
@given(st.one_of(matrices, sparse_matrices))
def test_colourings_of_both(matrix):
    rows, columns, shape = nonzeros(matrix)
    for costs in ((1.0, 1.0), (1.0, 3.0), (2.0, 1.0)):
        for colour_matrix in (colour_both, colour):
            found = colour_matrix(rows, columns, shape, *costs)
            assert_recovers(found, rows, columns, values_at(rows, columns, shape))


def is_star_colouring(near, colours):
    """By the definition: neighbours differ, and no path of four has two colours."""
    edges = np.argwhere(near)
    if any(colours[a] == colours[b] for a, b in edges):
        return False
    paths = (
        (a, b, c, d)
        for b, c in edges
        for a in np.flatnonzero(near[b])
        for d in np.flatnonzero(near[c])
        if len({a, b, c, d}) == 4
    )
    return all(len({colours[v] for v in path}) > 2 for path in paths)


@settings(deadline=None)
@given(st.integers(0, 10).flatmap(lambda n: arrays.arrays(bool, (n, n))), st.booleans())
def test_star_colourings(half, has_diagonal):
    matrix = half & np.roll(half, 1, 0)
    matrix = matrix | matrix.T
    np.fill_diagonal(matrix, has_diagonal)
    rows, columns, shape = nonzeros(matrix)
    found = colour_symmetric(rows, columns, len(matrix))
    near = matrix & ~np.eye(len(matrix), dtype=bool)
    assert is_star_colouring(near, found.column_colours) and not found.reverse
    values = values_at(rows, columns, shape)
    assert_recovers(found, rows, columns, values + values.T)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: arrays.arrays(bool, (n, n))), st.data())
def test_each_order_gives_a_star_colouring(half, data):
    near = half | half.T
    np.fill_diagonal(near, False)
    order = data.draw(st.permutations(range(len(near))))
    lists = [np.flatnonzero(row).tolist() for row in near]
    assert is_star_colouring(near, colouring._star_colouring(lists, order, True))


def test_smallest_last_takes_away_the_smallest_degree():
    """A hub with five leaves and a clique of four: without its leaves the hub has no neighbour."""
    hub_and_clique = [[1, 2, 3, 4, 5], *([0] for _ in range(5))]
    hub_and_clique += [[w for w in range(6, 10) if w != v] for v in range(6, 10)]
    degrees = [len(others) for others in hub_and_clique]
    order = colouring._smallest_last(hub_and_clique.__getitem__, degrees)
    assert sorted(order[:4]) == [6, 7, 8, 9] and 0 in order[4:6]


def band(size, width):
    """The nonzeros of a band matrix, row by row."""
    rows = np.repeat(np.arange(size), 2 * width + 1)
    columns = rows + np.tile(np.arange(-width, width + 1), size)
    is_inside = (columns >= 0) & (columns < size)
    return rows[is_inside], columns[is_inside], (size, size)


def arrowhead(size):
    """The nonzeros of the first row, the first column and the diagonal."""
    rest = np.arange(1, size)
    rows = np.concatenate([np.zeros(size, int), rest, rest])
    columns = np.concatenate([np.arange(size), np.zeros(size - 1, int), rest])
    return rows, columns, (size, size)


def brusselator(size):
    """Two substances on a torus: each meets its four neighbours and the other substance."""
    at = np.arange(2 * size * size).reshape(2, size, size)
    steps = [(0, 1), (1, 1), (-1, 1), (1, 2), (-1, 2)]
    columns = [*(np.roll(at, step, axis) for step, axis in steps), at[::-1]]
    rows = [at.reshape(-1)] * len(columns)
    return np.concatenate(rows), np.concatenate([c.reshape(-1) for c in columns]), (at.size,) * 2


def assert_recovers_sparse(found, rows, columns, shape):
    """As `assert_recovers`, for a symmetric matrix that is too large to be written out."""
    height, width = shape
    values = np.sin(rows * 1.0 + columns) + np.cos(1.0 * rows * columns)
    forward = found.column_colours[columns]
    reverse = found.row_colours[rows]
    reverse = np.where(reverse >= 0, reverse + found.forward, -1)
    products = np.zeros((found.forward + found.reverse, max(shape)))
    np.add.at(products, (forward[forward >= 0], rows[forward >= 0]), values[forward >= 0])
    np.add.at(products, (reverse[reverse >= 0], columns[reverse >= 0]), values[reverse >= 0])
    assert height == width
    np.testing.assert_array_equal(products.reshape(-1)[found.positions], values)


def test_a_tridiagonal_matrix_has_three_colours():
    rows, columns, shape = band(10_000, 1)
    for found in (colour(rows, columns, shape), colour_symmetric(rows, columns, shape[0])):
        assert (found.forward, found.reverse) == (3, 0)
        assert_recovers_sparse(found, rows, columns, shape)
    found = colour(rows, columns, shape, forward_cost=2.0, reverse_cost=1.0)
    assert (found.forward, found.reverse) == (0, 3)


@pytest.mark.sweep
def test_an_arrowhead_has_few_colours_by_rows_and_columns_together():
    rows, columns, shape = arrowhead(10_000)
    found = colour(rows, columns, shape)
    assert found.forward + found.reverse == 3
    assert_recovers_sparse(found, rows, columns, shape)
    cheap = colour(rows, columns, shape, forward_cost=1.0, reverse_cost=5.0)
    assert (cheap.forward, cheap.reverse) == (2, 1)
    found = colour_symmetric(rows, columns, shape[0])
    assert found.forward == 2
    assert_recovers_sparse(found, rows, columns, shape)


@pytest.mark.sweep
def test_a_brusselator_has_few_colours():
    rows, columns, shape = brusselator(100)
    found = colour(rows, columns, shape)
    assert found.forward <= 10 and not found.reverse
    assert_recovers_sparse(found, rows, columns, shape)
    again = colour(rows, columns, shape)
    assert np.array_equal(found.column_colours, again.column_colours)


def test_costs_choose_the_side():
    rows, columns, shape = nonzeros(np.ones((2, 100), bool))
    for reverse_cost, expected in ((1.0, (0, 2)), (49.0, (0, 2)), (51.0, (100, 0))):
        found = colour(rows, columns, shape, 1.0, reverse_cost)
        assert (found.forward, found.reverse) == expected


def test_the_side_of_the_longer_lines_may_be_the_cheaper_one():
    """Rows are the pairs of six columns: all columns differ, though no row has more than two."""
    pairs = list(itertools.combinations(range(6), 2))
    rows, columns = np.repeat(np.arange(len(pairs)), 2), np.array(pairs).reshape(-1)
    found = colour(rows, columns, (len(pairs), 6), forward_cost=2.0, reverse_cost=1.0)
    assert found.forward == 0 and found.reverse < 12


def test_a_gradient_is_one_reverse_product():
    graph = traced(lambda v: tg.reduce_sum(tg.sin(v)), (1000,))
    (p,) = pattern(graph)
    found = colour(p.elements, p.sources, (p.size, p.total), 1.0, 2.0)
    assert (found.forward, found.reverse) == (0, 1)


def test_a_jacobian_from_its_products():
    """All of it together: pattern, colours, products, and the nonzeros read from them."""
    graph = traced(stencil, (5, 6))
    (p,) = pattern(graph)
    found = colour(p.elements, p.sources, (p.size, p.total), 1.0, 2.0)
    assert found.forward < 12
    with jax.enable_x64(True):
        at = jnp.asarray(np.random.default_rng(0).standard_normal(30))
        run = lambda v: graph_function(graph)(v.reshape(5, 6))[0].reshape(-1)  # noqa: E731
        seeds = jnp.asarray(seeds_of(found.column_colours, found.forward), at.dtype)
        products = jax.vmap(lambda s: jax.jvp(run, (at,), (s,))[1])(seeds)
        expected = jax.jacobian(run)(at)
    jacobian = np.zeros(expected.shape)
    jacobian[p.elements, p.sources] = np.asarray(products).reshape(-1)[found.positions]
    np.testing.assert_allclose(jacobian, expected, rtol=1e-12)


def test_the_symmetric_part_of_a_pattern_that_is_too_large():
    matrix = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 1]], bool)
    rows, columns = symmetric_part(*np.nonzero(matrix), 3)
    expected = matrix & matrix.T
    assert np.array_equal(np.stack([rows, columns]), np.nonzero(expected))
    with pytest.raises(AssertionError, match="not symmetric"):
        colour_symmetric(*np.nonzero(matrix), 3)


def test_rows_of_the_table_are_tried():
    """A guard of the random graphs: they are made of most of the ops."""
    assert len({case.op.name for case in TRIED}) > 60
    assert x(3).sample in RANGES
