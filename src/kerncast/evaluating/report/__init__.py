"""The evaluation as one HTML file: no network, readable on a phone and on paper, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kerncast.evaluating.evaluation import Evaluation
from kerncast.files.atomic import write_text
from kerncast.models.model import Model

__all__ = ["write_report"]


def write_report(evaluation: Evaluation, model: Model | None, path: Path, budget: dict[str, Any] | None = None) -> None:
    """Write the report; the same evaluation gives the same bytes.

    The roofline and the feature importances come from the model; without one those parts are left out. The budget
    section needs `budget` (from `budget_curves`).
    """
    from kerncast.evaluating.report.page import render

    text = render(evaluation, model, budget)
    write_text(Path(path), text)
