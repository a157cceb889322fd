"""Every example in the docstrings and in the pages runs and prints what it says."""

import contextlib
import doctest
import importlib
import io
import pathlib
import pkgutil
import re
import signal
import sys

import numpy as np
import pytest

import lowering
import tracegraph as tg

ROOT = pathlib.Path(__file__).parents[2]
#: Pages whose snippets need 8 devices: the cases of `tests/eight_devices` run them.
ON_8_DEVICES = {ROOT / "docs/guide-to-distribution.md"}
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")} - ON_8_DEVICES
)
#: Pages that take seconds, which `.ci/run` runs in a step of its own.
LONG_PAGES = {
    f"guide-to-{name}.md"
    for name in (
        *("checkpoints", "control-flow", "diagnosis", "export", "function", "jax", "layers"),
        "training",
    )
}
FLAGS = doctest.ELLIPSIS  # white space counts: graphs and tables stand in columns
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def modules():
    for package in (tg, lowering):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield found.name


def run(test):
    """Runs a doctest and returns what it reports."""
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=report.write)
    return report.getvalue()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", list(modules()))
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"tg": tg, "np": np, "sys": sys}
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)  # some are loaded at their first use
    # What stands in `tg` itself runs as users run it: there `bool` is Python's.
    names = names if module is tg else {**vars(module), **names}
    found = doctest.DocTestFinder(exclude_empty=True).find(module, globs=names)
    reports = [run(test) for test in found if test.examples]
    assert not any(reports), "".join(reports)


def blocks(page):
    """The Python blocks of a page, each with the number of lines before it."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in BLOCK.finditer(text)]


@contextlib.contextmanager
def signal_handlers_restored():
    """Restores the signal handlers of this process: one that a page leaves behind would still save
    its checkpoint when pytest is ended."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def execute(page, names):
    """Runs the blocks of a page one after another, in one namespace."""
    parser = doctest.DocTestParser()
    with signal_handlers_restored():
        for line, code in blocks(page):
            if ">>>" in code:
                report = run(parser.get_doctest(code, names, page.name, str(page), line))
                assert not report, report
            else:
                exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.sweep] if page.name in LONG_PAGES else [])
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        execute(page, {"__name__": "page"})


def test_pages_leave_no_signal_handler(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nimport signal\n\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n```\n"
    )
    before = signal.getsignal(signal.SIGUSR1)
    execute(page, {})
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize("contents", ["README.md", "docs/index.md"])
def test_every_page_is_listed(contents):
    listed = re.findall(
        r"^- \[.*\]\((?:docs/)?(.+?)\)", (ROOT / contents).read_text(), re.MULTILINE
    )
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"}
    assert pages <= set(listed)
