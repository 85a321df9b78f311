"""Sphinx configuration: `make docs`."""

import kerncast

project = "kerncast"
author = "the kerncast authors"
copyright = "the kerncast authors, Apache-2.0"
version = release = kerncast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "kerncast"
