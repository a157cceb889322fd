"""Sphinx: `pip install -e '.[docs]'`, then `sphinx-build -W docs docs/_build`."""

import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))

project = pyproject["project"]["name"]
author = pyproject["project"]["authors"][0]["name"]
copyright = f"2026, {author}"
release = version = pyproject["project"]["version"]

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

exclude_patterns = ["_build"]
suppress_warnings = ["misc.highlighting_failure"]  # Pygments has no colours for Mermaid
nitpicky = True

html_theme = "furo"
html_title = f"{project} {release}"
pygments_style = "friendly"
pygments_dark_style = "native"
