"""The gallery shows what the code makes now."""

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import tracegraph as tg

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_gallery_is_what_the_code_makes():
    made = runpy.run_path(str(DOCS / "make_gallery.py"))["page"]()
    kept = (DOCS / "gallery.md").read_text("utf-8")
    assert kept == made, "run: python docs/make_gallery.py"


def test_the_picture_of_graphviz_is_that_of_the_layer():
    made = runpy.run_path(str(DOCS / "make_gallery.py"))
    model = made["run_model"](made["MODEL"])
    text = model["layer"].__call__.get_concrete_function().to_dot()
    named = re.findall(r'^    "([^"]+)" \[', text, re.MULTILINE)
    drawn = ElementTree.parse(DOCS / "images" / "layer.svg").iter(
        "{http://www.w3.org/2000/svg}title"
    )
    titles = {title.text for title in drawn}
    assert named and titles >= set(named), "draw it again: dot -Tsvg layer.dot"


def test_the_pictures_are_there():
    text = (DOCS / "gallery.md").read_text("utf-8")
    names = [line.split("(")[-1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert names and all((DOCS / name).is_file() for name in names)


def test_the_pages_draw_mermaid():
    """Sphinx is not needed to see that it is told to."""
    found = runpy.run_path(str(DOCS / "conf.py"))
    assert "sphinxcontrib.mermaid" in found["extensions"]
    assert "mermaid" in found["myst_fence_as_directive"]
    assert found["release"] == tg.__version__
    extra = found["pyproject"]["project"]["optional-dependencies"]["docs"]
    assert any(name.startswith("sphinxcontrib-mermaid") for name in extra)
