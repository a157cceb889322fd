"""Attributes and items in branches and loops whose setters are code of the user's own: the state is
set back to what was read, so a setter must store that."""

import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError


class Items:
    def __init__(self, value):
        self.v = value

    def __getitem__(self, key):
        return self.v * key

    def __setitem__(self, key, value):
        self.v = value * key


class Table(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2.0)


class Attributes:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2.0)


class Doubled:
    def __get__(self, owner, kind=None):
        return owner.held["v"]

    def __set__(self, owner, value):
        owner.held["v"] = value * 2.0


class WithDescriptor:
    v = Doubled()

    def __init__(self, value):
        self.held = {"v": value}


class WithHelper:
    def __init__(self, value):
        self._v = value

    @property
    def v(self):
        return self._v

    @v.setter
    def v(self, value):
        self._store(value)

    def _store(self, value):
        self._v = value * 2.0


class Slotted:
    __slots__ = ("_v",)

    def __init__(self, value):
        self._v = value

    v = property(lambda self: self._v, lambda self, value: setattr(self, "_v", value + 1.0))


def an_item(x):
    items = Items(x)
    if x > 1.0:
        items[2] = x
    return items.v


def a_key(x):
    table = Table(a=x)
    while table["a"] < 10.0:
        table["a"] = table["a"] + 1.0
    return table["a"]


def an_attribute(x):
    of = Attributes()
    of.v = x
    if x > 1.0:
        of.v = x * 3.0
    return of.v


def by(kind):
    def f(x):
        of = kind(x)
        if x > 1.0:
            of.v = of.v + 1.0
        return of.v

    return f


PROGRAMS = {
    "an item": (an_item, "__setitem__ of Items", r"Items\.v"),
    "a key": (a_key, "__setitem__ of Table", r"Table\['a'\]"),
    "an attribute": (an_attribute, "__setattr__ of Attributes", r"Attributes\.v"),
    "a descriptor": (by(WithDescriptor), "__set__ of WithDescriptor", r"held\['v'\]"),
    "a property": (by(WithHelper), "v of WithHelper", r"WithHelper\._v"),
    "a slot": (by(Slotted), "<lambda> of Slotted", r"Slotted\._v"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_setter_that_stores_something_else_is_refused(name):
    f, setter, place = PROGRAMS[name]
    fact = rf"{setter} sets state of a branch.* what was read changes .*{place}"
    with pytest.raises(SignatureError, match=fact) as caught:
        tg.function(f)(tg.constant(2.5))
    assert f"{__file__}:" in str(caught.value)


class Checked:
    """It stores what it is given, in a dict."""

    def __init__(self, value):
        object.__setattr__(self, "held", {"v": value})

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        assert isinstance(key, str)
        self.held[key] = value

    def __getattr__(self, name):
        return self.held[name]

    def __setattr__(self, name, value):
        self.held[name] = value


def by_items_and_attributes(x):
    of = Checked(x)
    if x > 1.0:
        of["v"] = of["v"] * 2.0
    count = 0
    while count < 3:
        of.v = of.v + x
        count += 1
    return of.v


def test_a_setter_that_stores_what_it_is_given_sets_state():
    f = tg.function(by_items_and_attributes)
    assert [f(tg.constant(x)).numpy() for x in (0.5, 2.5)] == [2.0, 12.5]


def without_items(x, last):
    xs = ys = [x, x]
    if x > 1.0:
        xs[0] = x * 2.0
        xs = last
    return ys[0]


@pytest.mark.parametrize("last", [None, 3, (1.0, 2.0), tg.ones([2]), "text"])
def test_what_has_no_items_in_place_of_a_list_is_refused(last):
    fact = r"'xs\[0\]' is set in only one branch|values of 'xs' .* differ"
    with pytest.raises(SignatureError, match=fact):
        tg.function(without_items)(tg.constant(2.5), last)
