"""The gallery shows what the code makes now."""

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_gallery_is_what_the_code_makes():
    made = runpy.run_path(str(DOCS / "make_gallery.py"))["page"]()
    kept = (DOCS / "gallery.md").read_text("utf-8")
    assert kept == made, "run: python docs/make_gallery.py"


def test_the_pictures_are_there():
    text = (DOCS / "gallery.md").read_text("utf-8")
    names = [line.split("(")[-1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert names and all((DOCS / name).is_file() for name in names)
