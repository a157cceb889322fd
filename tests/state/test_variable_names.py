"""What errors call a Variable: its name, or what graphs call it, which is after its holder."""

import re

import pytest

import tracegraph as tg


class Block(tg.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tg.Variable(tg.zeros([2]))


class Blocks(tg.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]

    def assign(self, value):
        self.blocks[1].kernel.assign(value)

    @tg.function
    def assign_traced(self, value):
        self.blocks[1].kernel.assign(value)

    @tg.function
    def read(self):
        return self.blocks[1].kernel * 1.0


def give(v, value):
    v.assign(value)


def add_in_place(model):
    model.blocks[0].kernel += 1.0


def set_item(model):
    model.blocks[0].kernel[0] = 1.0


def no_gradient(model):
    tg.optimizers.SGD().apply_gradients([(None, v) for v in model.variables])


MISUSES = {
    "in a method": (lambda m: m.assign(tg.ones([3])), "'blocks.1.kernel'"),
    "in a function": (lambda m: m.assign_traced(tg.ones([3])), "'blocks.1.kernel'"),
    "in a helper": (lambda m: give(m.blocks[1].kernel, tg.ones([3])), "'m.blocks.1.kernel'"),
    "another dtype": (
        lambda m: m.blocks[1].kernel.assign(tg.constant([1, 2])),
        "'m.blocks.1.kernel'",
    ),
    "no number": (lambda m: m.blocks[1].kernel.assign("a"), "'m.blocks.1.kernel'"),
    "in a loop": (lambda m: [hash(v) for v in m.variables], "'m.blocks.0.kernel'"),
    "in place": (add_in_place, "'model.blocks.0.kernel'"),
    "an item": (set_item, "'model.blocks.0.kernel'"),
    "no gradient": (no_gradient, "model.blocks.0.kernel, model.blocks.1.kernel"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_errors_call_a_variable_without_a_name_after_what_holds_it(misuse):
    strike, name = MISUSES[misuse]
    model = Blocks()
    with pytest.raises((ValueError, TypeError, RuntimeError), match=re.escape(name)):
        strike(model)


def add_in_function(model):
    tg.function(lambda: model.blocks[1].kernel + tg.ones([3]))()


def add_argument(model):
    tg.function(lambda m: m.blocks[1].kernel + tg.ones([3]))(model)


def with_wrong_gradient(model):
    @tg.custom_gradient
    def f(x):
        return x * model.blocks[1].kernel, lambda dy, variables=None: (dy, [tg.ones([3])])

    with tg.GradientTape() as tape:
        y = f(tg.ones([2]))
    tape.gradient(y, model.variables)


def add_items_of_a_dict(model):
    held = {"lst": [tg.Variable([1.0]), tg.Variable([1.0, 2.0])]}
    return held["lst"][1] + tg.ones([3])


OPERANDS = {
    "at top level": (lambda m: m.blocks[1].kernel + tg.ones([3]), "m.blocks.1.kernel"),
    "read at top level": (lambda m: tg.reshape(m.blocks[1].kernel, [3]), "m.blocks.1.kernel"),
    "in a function": (add_in_function, "model.blocks.1.kernel"),
    "of an argument": (add_argument, "m.blocks.1.kernel"),
    "in a custom gradient": (with_wrong_gradient, "model.blocks.1.kernel"),
    "scattered": (
        lambda m: m.blocks[1].kernel.scatter_nd_update([[0, 0]], [1.0]),
        "m.blocks.1.kernel",
    ),
    "in containers": (add_items_of_a_dict, "held.lst.1"),
}


@pytest.mark.parametrize("misuse", OPERANDS)
def test_errors_call_an_operand_that_is_read_from_a_variable_by_the_same_name(misuse):
    strike, name = OPERANDS[misuse]
    model = Blocks()
    with pytest.raises(ValueError, match=re.escape(f"'{name}'")):
        strike(model)


def test_operands_have_the_names_that_users_gave():
    with tg.name_scope("encoder"):
        w = tg.Variable([1.0, 2.0], name="w")
    for function in (lambda: w + tg.ones([3]), tg.function(lambda: w + tg.ones([3]))):
        with pytest.raises(ValueError, match=r"\(Variable 'encoder/w'\)"):
            function()


def test_errors_and_graphs_have_the_same_name():
    model = Blocks()
    assert "%blocks.1.kernel" in str(model.read.get_concrete_function().graph)
    with pytest.raises(ValueError, match=r"'blocks\.1\.kernel'"):
        model.assign(tg.ones([3]))


def test_errors_call_a_variable_by_its_own_name_or_by_that_of_the_line():
    named = tg.Variable([1.0], name="w")
    with pytest.raises(ValueError, match="'w:0'"):
        named.assign([1.0, 2.0])
    free = tg.Variable([1.0])
    with pytest.raises(ValueError, match="'free'"):
        free.assign([1.0, 2.0])
    with pytest.raises(ValueError, match="'Variable:0'"):
        tg.Variable([1.0]).assign([1.0, 2.0])


def test_a_restore_names_the_variable_that_differs(tmp_path):
    tg.train.Checkpoint(model=Blocks()).write(tmp_path / "ckpt")
    model = Blocks()
    model.blocks[1].kernel = tg.Variable(tg.zeros([3]))
    with pytest.raises(ValueError, match=r"variable 'model\.blocks\.1\.kernel' is f32"):
        tg.train.Checkpoint(model=model).restore(tmp_path / "ckpt")
