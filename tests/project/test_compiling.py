"""How the programs of tests are compiled."""

import threading

import jax
import jax.numpy as jnp
import pytest

from tests import compiling


class Context:
    """Stands for one of MLIR's: those of later versions of JAX may be one and the same."""


@pytest.fixture
def contexts(monkeypatch):
    monkeypatch.setattr(compiling.mlir, "make_ir_context", Context)
    return compiling._Contexts()


def test_modules_share_a_context_until_it_is_full(contexts):
    count = compiling._Contexts._MODULES
    given = [contexts.context() for _ in range(2 * count)]
    assert len({*map(id, given)}) == 2
    assert len({*map(id, given[:count])}) == 1


def test_threads_share_a_context_one_after_another(contexts):
    given, ends = [], threading.Event()

    def lowers():
        given.append(contexts.context())
        ends.wait()

    threads = [threading.Thread(target=lowers) for _ in range(2)]
    for thread in threads:
        thread.start()
    ends.set()
    for thread in threads:
        thread.join()
    assert contexts.context() in given


def test_a_context_of_a_live_thread_is_not_given_to_another(contexts):
    own, others = contexts.context(), []
    thread = threading.Thread(target=lambda: others.append(contexts.context()))
    thread.start()
    thread.join()
    assert others[0] is not own
    assert contexts.context() is own


def test_programs_share_contexts():
    lowered = [jax.jit(f).lower(jnp.ones(3)) for f in (jnp.sin, jnp.cos, jnp.tan)]
    assert len({id(x.compiler_ir().context) for x in lowered}) < 3
