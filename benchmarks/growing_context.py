"""Milliseconds per token as a context grows by one token per step, with and without buckets.

    python -m benchmarks.growing_context --tokens 64

A transformer of two layers reads the whole context at each step. The first round compiles; the
second shows what a server pays from then on. Without buckets every length is compiled, so that
function draws fewer tokens.
"""

import argparse
import time
import warnings

import numpy as np

import tracegraph as tg

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 64, 32, 2, 2, 256


def make_model():
    """A function from token ids [n] to the id of the next token [1]."""
    rng = np.random.default_rng(0)

    def weights(*shape):
        return tg.Variable(0.1 * rng.standard_normal(shape).astype(np.float32))

    words, places = weights(VOCABULARY, WIDTH), weights(LONGEST, WIDTH)
    layers = [
        (
            *(weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH)),
            *(weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH)),
        )
        for _ in range(LAYERS)
    ]

    def next_token(ids):
        n = tg.shape(ids)[0]
        x = tg.gather(words, ids) + tg.gather(places, tg.range(n))
        may_see = tg.linalg.band_part(tg.ones([n, n]), -1, 0) > 0
        for to_heads, from_heads, up, down in layers:
            heads = tg.reshape(tg.matmul(x, to_heads), [-1, 3, HEADS, WIDTH // HEADS])
            q, k, v = (tg.transpose(heads[:, i], [1, 0, 2]) for i in range(3))
            scores = tg.matmul(q, k, transpose_b=True) / (WIDTH / HEADS) ** 0.5
            shares = tg.nn.softmax(tg.where(may_see, scores, -1e9))
            mixed = tg.transpose(tg.matmul(shares, v), [1, 0, 2])
            x += tg.matmul(tg.reshape(mixed, [-1, WIDTH]), from_heads)
            x += tg.matmul(tg.nn.relu(tg.matmul(x, up)), down)
        return tg.argmax(tg.matmul(x[-1:], words, transpose_b=True), -1, output_type=tg.int32)

    return next_token


def generate(function, count):
    """Milliseconds per token, and the tokens."""
    ids = np.array([1], np.int32)
    began = time.perf_counter()
    for _ in range(count):
        ids = np.concatenate([ids, function(ids).numpy()])
    return 1e3 * (time.perf_counter() - began) / count, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--plain-tokens", type=int, default=16)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the plain function warns about its many sizes
    model, ids = make_model(), tg.TensorSpec([None], tg.int32)
    padded = tg.function(model, input_signature=[ids], bucket_sizes="powers_of_two")
    first, tokens = generate(padded, options.tokens)
    again, same = generate(padded, options.tokens)
    plain, found = generate(tg.function(model, input_signature=[ids]), options.plain_tokens)
    assert np.array_equal(tokens, same)
    assert np.array_equal(tokens[: len(found)], found)
    print(f"with buckets, first round: {first:.1f} ms a token; second: {again:.2f} ms")
    print(f"each length compiled:      {plain:.1f} ms a token, over {options.plain_tokens} tokens")


if __name__ == "__main__":
    main()
