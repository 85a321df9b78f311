"""The page: what each part says, filled into the template."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core.io.foreign import read_json
from kerncast.core.io.html import visible
from kerncast.evaluating.evaluation import Evaluation
from kerncast.evaluating.report import charts, tables
from kerncast.evaluating.report.budget import budget_charts
from kerncast.evaluating.report.drilldown import worst_problems
from kerncast.evaluating.report.headline import cards, headline, levels, warnings
from kerncast.evaluating.report.plot import Chart
from kerncast.evaluating.report.roofline import roofline_chart
from kerncast.evaluating.report.words import assignments, part_of
from kerncast.models.manifest import IMPORTANCES
from kerncast.models.model import Model

MOST_IMPORTANCES = 20


@dataclass(frozen=True)
class Section:
    """A heading with charts below it."""

    name: str
    title: str
    charts: list[Chart]


def render(evaluation: Evaluation, model: Model | None, budget: dict[str, Any] | None) -> str:
    """The whole file as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    summary = evaluation.as_json()
    choosing = summary["overall"]["efficiency_mean"] is not None
    fixed, told = without_fixed(evaluation)
    worst = worst_problems(told.problems, told.rows) if choosing or _has_times(told.rows) else []
    sections = chart_sections(told, model, budget, dtypes_of(evaluation.problems))
    figures = {chart.name: chart.figure for section in sections.values() for chart in section.charts}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    page = environment.from_string(_file("template.html.j2")).render(
        facts=_facts(summary, model, fixed),
        summary=summary,
        choosing=choosing,
        headline=headline(summary),
        warnings=warnings(summary),
        cards=cards(summary),
        choosers=tables.choosers(summary),
        chooser_names=[title for _, title in tables.CHOOSING],
        predictors=tables.predictors(summary),
        predictor_names=[title for _, title in tables.RUNTIME],
        against=tables.against(summary),
        rates=tables.rates(summary),
        worst_predictions=tables.worst_predictions(summary["worst_predictions"]) if choosing and _has_times(told.rows) else [],
        placed=any(line.get("device") for line in summary["worst_predictions"]),
        sections=sections,
        slices=tables.slice_groups(summary["slices"]),
        worst=worst,
        importances=_importances(model),
        chart_data=Markup(embedded(figures)),
        worst_data=Markup(embedded([asdict(problem)["data"] for problem in worst])),
        style=Markup(_file("style.css")),
        script=Markup(_file("report.js")),
        plotly=Markup(get_plotlyjs()),
    )
    return page if page.endswith("\n") else page + "\n"


def _visible(value: Any) -> Any:
    """Text of the data as it is shown; what is HTML already stays as it is."""
    return visible(value) if type(value) is str else value


def embedded(value: Any) -> str:
    """JSON for a script element, escaped so that no label can close the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _has_times(rows: pl.DataFrame) -> bool:
    return "predicted_ns" in rows.columns and rows.height > 0 and rows["predicted_ns"].is_finite().any()


def without_fixed(evaluation: Evaluation) -> tuple[dict[str, Any], Evaluation]:
    """The problem parameters that are the same everywhere, and the evaluation without them and a lone device: labels leave
    them out."""
    problems = evaluation.problems
    names = [name for name in problems.columns if name.startswith("problem.") and problems[name].n_unique() == 1]
    if problems.height < 2:
        names = []
    fixed = part_of(problems.select(names).row(0, named=True), "problem") if names else {}
    if problems["device"].n_unique() < 2:
        names.append("device")
    return fixed, replace(evaluation, problems=problems.drop(names), rows=evaluation.rows.drop(names))


def dtypes_of(problems: pl.DataFrame) -> list[str]:
    """The dtypes that occur; empty if problems have none."""
    return sorted(set(problems["problem.dtype"].cast(pl.String).drop_nulls())) if "problem.dtype" in problems.columns else []


def chart_sections(
    evaluation: Evaluation, model: Model | None, budget: dict[str, Any] | None, dtypes: list[str]
) -> dict[str, Section]:
    """The sections of charts; a section with nothing to show is left out."""
    summary, problems, rows = evaluation.as_json(), evaluation.problems, evaluation.rows
    choosing = summary["overall"]["efficiency_mean"] is not None
    choice: list[Chart | None] = []
    if choosing:
        choice.append(charts.efficiency_curve(problems, levels(summary)))
        if len(summary.get("top_k") or []) > 1:
            choice.append(charts.top_k_curve(summary["top_k"]))
    times: list[Chart | None] = []
    if _has_times(rows):
        level = summary.get("interval_level", 0.9)
        times = [
            charts.predicted_scatter(rows, problems, choosing),
            charts.coverage_chart(rows, level),
            charts.ratio_chart(rows),
        ]
    device = model.device if model is not None and len(summary["devices"]) == 1 else None
    made: list[tuple[str, str, list[Chart | None]]] = [
        ("choice", "The choice", choice),
        ("times", "The predicted times", times),
        ("limits", "The device", [roofline_chart(problems, device, dtypes, choosing)]),
        ("budget", "How much must be measured?", list(budget_charts(budget))),
    ]
    sections = {name: Section(name, title, [chart for chart in found if chart is not None]) for name, title, found in made}
    return {name: section for name, section in sections.items() if section.charts}


def _facts(summary: dict[str, Any], model: Model | None, fixed: dict[str, Any]) -> list[tuple[str, str]]:
    """What was judged and on what, as names and values."""
    split = summary["split"]
    how = f"refitted fold by fold, split by {split}" if split else "as it is, on problems it had not seen"
    if summary["includes_training_data"]:
        how = "as it is, training problems included"
    elif not summary.get("training_recorded", True):
        how = "as it is, on problems that it may have seen"
    facts = [
        ("model", Path(summary["model"]).name),
        ("kind", summary["kind"]),
        ("device", model.device.title if model is not None and len(summary["devices"]) == 1 else ", ".join(summary["devices"])),
        ("measured in", ", ".join(Path(name).name for name in summary["datasets"])),
        ("judged", how),
        ("every problem", assignments(fixed)),
    ]
    return [(name, value) for name, value in facts if value]


def _importances(model: Model | None) -> list[tables.Bar]:
    if model is None or not (model.path / IMPORTANCES).is_file():
        return []
    found = read_json(model.path / IMPORTANCES, type=dict[str, float])
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MOST_IMPORTANCES]
    return [tables.bar(name, share, share / ordered[0][1]) for name, share in ordered if share > 0]
