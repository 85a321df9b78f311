"""Sphinx configuration: `make docs`."""

import inspect
import typing

import kerncast

project = "kerncast"
author = "the kerncast authors"
copyright = "the kerncast authors, Apache-2.0"
version = release = kerncast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "kerncast"


def setup(app):
    """Signatures without what the command line says of each parameter."""
    app.connect("autodoc-process-signature", _plain_signature)


def _plain_signature(app, what, name, item, options, signature, returns):
    """Of a public function without what the command line says of its parameters."""
    if what != "function" or not getattr(item, "__module__", "").startswith("kerncast.app.api."):
        return None
    hints = typing.get_type_hints(item)
    plain = inspect.signature(item)
    parameters = [each.replace(annotation=hints.get(key, each.empty)) for key, each in plain.parameters.items()]
    return str(plain.replace(parameters=parameters, return_annotation=plain.empty)), returns
