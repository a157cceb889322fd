"""Sphinx: `pip install -e '.[docs]'`, then `sphinx-build -W docs docs/_build`."""

import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

project = pyproject["project"]["name"]
author = pyproject["project"]["authors"][0]["name"]
copyright = f"2026, {author}"
version_file = ROOT / pyproject["tool"]["hatch"]["version"]["path"]
release = version = runpy.run_path(str(version_file))["__version__"]

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"{project} {release}"
pygments_style = "friendly"
pygments_dark_style = "native"
