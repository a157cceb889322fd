"""Which cases of a table each run tries."""

import itertools
import zlib


def divided(cases, count):
    """Divides the cases of a test: `count` of them, and the others. With several parameters it
    first picks values that no case has yet, then pairs of values. Otherwise it picks by name: the
    same cases in each run, spread over the whole table, where neighbours are alike."""
    others = sorted(cases, key=lambda item: zlib.crc32(_name(item).encode()))
    if len(_values(others[0])) == 1:
        return others[:count], others[count:]
    values = {item: set(_values(item)) for item in cases}
    pairs = {item: set(itertools.combinations(_values(item), 2)) for item in cases}
    kept, seen = [], set()

    def news(item):
        return len(values[item] - seen), len(pairs[item] - seen)

    while others and len(kept) < count:
        kept.append(max(others, key=news))
        others.remove(kept[-1])
        seen |= values[kept[-1]] | pairs[kept[-1]]
    return kept, others


def _values(item):
    """The value of each of a test's parametrisations for a case, in order of names."""
    given, groups = item.callspec.params, []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        groups.append([x.strip() for x in names.split(",")] if isinstance(names, str) else names)
    groups += [[name] for name in given if not any(name in names for names in groups)]
    return sorted((names[0], *(id(given[x]) for x in names)) for names in groups)


def _name(item):
    """The name of a case without the folder of its file, which may move and keeps its cases."""
    file, colons, name = item.nodeid.partition("::")
    return file.rpartition("/")[2] + colons + name
