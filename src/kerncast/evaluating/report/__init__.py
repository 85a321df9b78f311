"""The evaluation as one HTML file: no network, readable on a phone and on paper, light and dark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kerncast.core.io.atomic import write_text
from kerncast.errors import NotFound
from kerncast.evaluating.evaluation import Evaluation
from kerncast.models.model import Model

__all__ = ["check_can_report", "write_report"]


def check_can_report() -> None:
    """Refuse, before hours of fitting, what the report at their end needs and is not installed."""
    for package in ("jinja2", "plotly"):
        if find_spec(package) is None:
            raise NotFound.package("a report", package, "train")


def write_report(evaluation: Evaluation, model: Model | None, path: Path, budget: dict[str, Any] | None = None) -> None:
    """Write the report; the same evaluation gives the same bytes.

    The roofline and the feature importances come from the model; without one those parts are left out. The budget
    section needs `budget` (from `budget_curves`).
    """
    from kerncast.evaluating.report.page import render

    check_can_report()
    text = render(evaluation, model, budget)
    write_text(Path(path), text)
