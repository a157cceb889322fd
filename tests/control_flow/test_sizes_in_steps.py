"""Sizes that a step of a loop finds, where it is known how large they may become."""

import numpy as np
import pytest

import tracegraph as tg

WIDTH, WORDS, LENGTH = 4, 7, 5
RNG = np.random.default_rng(3)
EMBEDDING, KEYS, HEAD = (
    RNG.normal(size=shape) for shape in ((WORDS, WIDTH), (WIDTH, WIDTH), (WIDTH, WORDS))
)
SENTENCE = np.array([[1, 2, 3, 6]])


def f64(x):
    return tg.constant(x, tg.float64)


def attention(sentence, output, embedding):
    """Logits of a decoder of one layer: causal attention to its own output, then to a sentence."""
    x, e = tg.gather(embedding, output), tg.gather(embedding, sentence)
    n = tg.shape(x)[1]
    scores = tg.matmul(x @ f64(KEYS), x, transpose_b=True)
    future = 1.0 - tg.linalg.band_part(tg.ones([n, n], tg.float64), -1, 0)
    x = x + tg.nn.softmax(scores - 1e9 * future) @ x
    x = x + tg.nn.softmax(tg.matmul(x @ f64(KEYS), e, transpose_b=True)) @ e
    return x @ f64(HEAD)


def translated(sentence, end):
    """The loop of TensorFlow's transformer tutorial."""
    outputs = tg.TensorArray(tg.int64, size=0, dynamic_size=True)
    outputs = outputs.write(0, tg.constant([1], tg.int64))
    for i in tg.range(LENGTH):
        output = tg.transpose(outputs.stack())
        predictions = attention(sentence, output, f64(EMBEDDING))
        predicted = tg.argmax(predictions[:, -1:, :], axis=-1)
        outputs = outputs.write(i + 1, predicted[0])
        if predicted == end:
            break
    return tg.transpose(outputs.stack())


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain_translated(end):
    found = [1]
    while len(found) <= LENGTH:
        x, e = EMBEDDING[found], EMBEDDING[SENTENCE[0]]
        x = x + softmax(np.where(np.tri(len(found)) == 1, x @ KEYS @ x.T, -1e9)) @ x
        x = x + softmax(x @ KEYS @ e.T) @ e
        found.append(int(np.argmax((x @ HEAD)[-1])))
        if found[-1] == end:
            break
    return found


def test_a_decoder_that_reads_all_that_it_has_written():
    f = tg.function(translated)
    longest = plain_translated(-1)
    for end in (*{longest[1], longest[-1]}, -1):
        found = f(tg.constant(SENTENCE, tg.int64), tg.constant([end], tg.int64))
        assert found.numpy().tolist() == [plain_translated(end)]
    assert f.experimental_get_tracing_count() == 1


def leading_sums(x, n):
    total = 0.0 * x[0]
    for i in tg.range(n):
        total += tg.reduce_prod(x[:i]) + tg.reduce_max(x[i:])
    return total


def plain_leading_sums(x, n):
    terms = (np.prod(x[:i]) + np.max(x[i:]) for i in range(n))
    return sum(terms, 0.0 * x[0])


def test_slices_that_grow_from_step_to_step():
    x = np.array([0.5, -1.5, 2.0, 0.7])

    @tg.function
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = leading_sums(x, n)
        return y, tape.gradient(y, x)

    lanes = np.stack([x, x[::-1] + 0.1])
    for n in (0, 1, 4):
        y, found = slope(f64(x), tg.constant(n))
        near = [plain_leading_sums(x + d, n) for d in np.eye(4) * 1e-6]
        far = [plain_leading_sums(x - d, n) for d in np.eye(4) * 1e-6]
        np.testing.assert_allclose(y, plain_leading_sums(x, n), rtol=1e-12)
        np.testing.assert_allclose(found, np.subtract(near, far) / 2e-6, atol=1e-8)
        both = tg.vectorized_map(lambda x, n=n: slope(x, tg.constant(n))[0], f64(lanes))
        np.testing.assert_allclose(both, [plain_leading_sums(x, n) for x in lanes], rtol=1e-12)


def taken_for_the_whole(x, n):
    for i in tg.range(n):
        x = x + x[:i]
    return x


def returned(x, n):
    y = x
    for i in tg.range(n):
        y = x[:i]
    return y


def boolean(x, n):
    total = 0.0
    for i in tg.range(n):
        total += tg.reduce_sum(x[x > tg.cast(i, tg.float32)])
    return total


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (taken_for_the_whole, "taken to be another size"),
        (returned, "has it"),
        (boolean, "how large it may become"),
    ],
)
def test_what_cannot_have_the_largest_size(body, reason):
    words = f"same shape in every step; here .*{reason}"
    with pytest.raises(tg.errors.TraceError, match=words) as caught:
        tg.function(body)(tg.ones([4]), tg.constant(3))
    assert "test_sizes_in_steps.py" in str(caught.value) and "fix: " in str(caught.value)


def test_one_element_is_a_truth_value():
    @tg.function
    def f(x):
        if x > 0.0:
            return x[0, 0]
        return -x[0, 0]

    assert [float(f(tg.constant([[x]]))) for x in (2.0, -3.0)] == [2.0, 3.0]


def episode(x, n):
    rewards = tg.TensorArray(tg.float64, size=0, dynamic_size=True)
    for t in tg.range(n):
        x = x * 1.5
        if x < 10.0:
            rewards = rewards.write(rewards.size(), x)
        if x > 50.0:
            return rewards.stack(), t
    return rewards.stack() * 2.0, n


def endless_episode(x, n):
    rewards = tg.TensorArray(tg.float64, size=0, dynamic_size=True)
    t = 0
    while t < n:
        x = x * 1.5
        if x < 10.0:
            rewards = rewards.write(t, x)
        else:
            rewards = rewards.write(t, -x)
            if x > 50.0:
                return tg.cumsum(rewards.stack())
        t += 1
    return rewards.stack()


def plain_episode(x, n):
    rewards = []
    for t in range(n):
        x = x * 1.5
        if x < 10.0:
            rewards.append(x)
        if x > 50.0:
            return np.array(rewards), t
    return np.array(rewards) * 2.0, n


def plain_endless_episode(x, n):
    rewards = []
    for _ in range(n):
        x = x * 1.5
        rewards.append(x if x < 10.0 else -x)
        if x > 50.0:
            return np.cumsum(rewards)
    return np.array(rewards)


def test_an_episode_that_returns_what_it_has_written(tmp_path):
    module = tg.Module()
    spec = tg.TensorSpec([], tg.float64), tg.TensorSpec([], tg.int32)
    module.f = tg.function(episode, input_signature=spec)
    tg.saved_model.save(module, tmp_path)
    for f in (module.f, tg.saved_model.load(tmp_path).f):
        for n in (20, 4):
            found, last = f(f64(1.0), tg.constant(n))
            wanted, end = plain_episode(1.0, n)
            np.testing.assert_allclose(found, wanted, rtol=1e-15)
            assert int(last) == end


def returned_thrice(x, n):
    rewards = tg.TensorArray(tg.float64, size=0, dynamic_size=True)
    for t in tg.range(n):
        x = x * 1.5
        rewards = rewards.write(t, x)
        if x > 50.0:
            return rewards.stack()
        if x > 40.0:
            return rewards.stack()[1:]
        if x < -9.0:
            return rewards.stack()[2:] * 2.0
    return rewards.stack() * 3.0


def plain_returned_thrice(x, n):
    rewards = x * 1.5 ** np.arange(1, n + 1)
    for t, reward in enumerate(rewards):
        if reward > 50.0:
            return rewards[: t + 1]
        if reward > 40.0:
            return rewards[1 : t + 1]
        if reward < -9.0:
            return rewards[2 : t + 1] * 2.0
    return rewards * 3.0


def test_returns_of_several_sizes_from_one_loop():
    @tg.function
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = returned_thrice(x, n)
            total = tg.reduce_sum(y**2)
        return y, tape.gradient(total, x)

    for x, n in ((30.0, 4), (12.0, 5), (27.0, 4), (-4.0, 9), (1.0, 3), (1.0, 0)):
        found, gradient = slope(f64(x), tg.constant(n))
        wanted = plain_returned_thrice(x, n)
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
        # All are multiples of x.
        assert float(gradient) == pytest.approx(2.0 * np.sum(wanted**2) / x, rel=1e-12)


def last_above(x, n):
    for i in tg.range(n):
        y = x[x > tg.cast(i, tg.float32)]
    return y


def test_a_name_that_only_steps_set():
    x, f = tg.constant([9.0, 1.0, 12.0, 2.5]), tg.function(last_above)
    for n in (1, 3):
        np.testing.assert_array_equal(f(x, tg.constant(n)), x[x > n - 1.0])
    with pytest.raises(tg.errors.InvalidArgumentError, match="'y' is set by a loop that ran 0"):
        f(x, tg.constant(0))


def found_by_python(x, n):
    for i in tg.range(n):
        y = tg.numpy_function(lambda x: x[x > 4.0], [x], tg.float32)
        y.set_shape([None])
        if i == 2:
            return y
    return x


def test_a_size_that_an_effect_finds_cannot_leave_a_loop():
    with pytest.raises(tg.errors.ShapeError, match="only what has no effects") as caught:
        tg.function(found_by_python)(tg.ones([4]), tg.constant(3))
    assert "y = tg.numpy_function(" in str(caught.value) and "set_shape" in str(caught.value)


def test_an_episode_that_returns_something_computed_of_it():
    f = tg.function(endless_episode)
    for x, n in ((1.0, 20), (0.8, 20), (1.0, 4)):
        found = f(f64(x), tg.constant(n))
        np.testing.assert_allclose(found, plain_endless_episode(x, n), rtol=1e-14)


def test_the_gradient_of_what_an_episode_returns():
    @tg.function
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(episode(x, n)[0] ** 2)
        return tape.gradient(y, x)

    for n in (20, 4):
        wanted = 2.0 * np.sum(plain_episode(1.0, n)[0] ** 2)  # all are multiples of x
        assert float(slope(f64(1.0), tg.constant(n))) == pytest.approx(wanted, rel=1e-12)


def primes(n):
    is_prime = tg.concat([[False, False], tg.ones([n - 1], tg.bool)], 0)
    p = 2
    while p * p <= n:
        if is_prime[p]:
            numbers = tg.range(n + 1)
            is_prime = is_prime & ((numbers % p != 0) | (numbers < p * p))
        p += 1
    return tg.where(is_prime)[:, 0]


def test_a_sieve_whose_branch_computes_a_size_that_no_step_changes():
    f = tg.function(primes)
    for n in (2, 30, 50):
        wanted = [k for k in range(2, n + 1) if all(k % p for p in range(2, k))]
        assert f(tg.constant(n)).numpy().tolist() == wanted


def weighted(x, mask, n):
    total = tg.constant(0.0, tg.float64)
    for i in tg.range(3):
        for _ in tg.range(n):
            kept = tg.boolean_mask(x, mask)
            total += tg.reduce_sum(kept**2) * tg.reduce_sum(tg.ones([n], tg.float64))
        total += tg.cast(i, tg.float64)
    return total


def test_sizes_that_no_step_of_nested_loops_changes():
    @tg.function
    def slope(x, mask, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = weighted(x, mask, n)
        return y, tape.gradient(y, x)

    x, mask = np.array([0.5, -1.5, 2.0, 0.7]), np.array([True, False, True, True])
    for n in (2, 0):
        y, gradient = slope(f64(x), tg.constant(mask), tg.constant(n))
        assert float(y) == pytest.approx(3 * n * n * np.sum(x[mask] ** 2) + 3)
        np.testing.assert_allclose(gradient, 6 * n * n * np.where(mask, x, 0.0))


def of_a_branch(n):
    total = 0.0
    for _ in tg.range(3):
        if n > 2:
            total += tg.reduce_sum(tg.ones([n - 2]))
    return total


def test_a_size_that_only_a_branch_computes_may_be_negative():
    with pytest.raises(tg.errors.TraceError, match="how large it may become"):
        tg.function(of_a_branch)(tg.constant(1))


def test_a_loop_of_no_steps_indexes_what_has_no_rows():
    @tg.function
    def total(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.zeros([2])
            for i in tg.range(n):
                y = y + x[i] * tg.gather(x, i) + tg.gather_nd(x, [i]) + tg.reduce_sum(x[:, i])
        return y, tape.gradient(y, x)

    for n in (0, 2):
        x = tg.ones([n, 2])
        y, slope = total(x, tg.constant(n))
        np.testing.assert_array_equal(y.numpy(), [4.0 * n] * 2)
        assert slope.shape == (n, 2)
    with pytest.raises(tg.errors.InvalidArgumentError, match="has no elements to index"):
        total(tg.ones([0, 2]), tg.constant(1))


def test_a_loop_of_no_steps_divides_by_nothing():
    """x[i % size] is a usual way round a ring; an empty one has no step."""

    @tg.function
    def once_round(x, n):
        y = tg.reduce_sum(x)
        for i in tg.range(n):
            y = y + x[i % tg.size(x)]
        return y

    assert once_round(tg.ones([2]), tg.constant(5)).numpy() == 7.0
    assert once_round(tg.ones([0]), tg.constant(0)).numpy() == 0.0
    with pytest.raises(tg.errors.InvalidArgumentError, match=r"divided by zero; in step 0"):
        once_round(tg.ones([0]), tg.constant(1))


def test_a_loop_that_breaks_over_rows_of_which_the_run_finds_none():
    @tg.function
    def total(x, low):
        y = 0.0
        for row in tg.boolean_mask(x, x > low):
            y = y * row + row * row
            if y > 100.0:
                break
        return y

    x = tg.constant([0.25, 0.5, 2.0], tg.float64)
    for low, y, slope in ((5.0, 0.0, [0, 0, 0]), (0.4, 4.5, [0, 2.0, 4.25])):
        f = lambda x, low=low: total(x, tg.constant(low, tg.float64))  # noqa: E731
        assert float(f(x)) == y
        np.testing.assert_allclose(tg.grad(f)(x).numpy(), slope)
        np.testing.assert_allclose(tg.jvp(f, (x,), (tg.ones_like(x),))[1].numpy(), sum(slope))


def test_an_index_into_what_the_run_finds_empty_is_refused_where_it_is_certain_to_run():
    @tg.function
    def chosen(x, n):
        return tg.boolean_mask(x, x > 1.0)[n]

    assert float(chosen(tg.constant([0.5, 2.0]), tg.constant(0))) == 2.0
    with pytest.raises(tg.errors.ShapeError, match=rf"{__file__}:\d+"):
        chosen(tg.constant([0.5]), tg.constant(0))
