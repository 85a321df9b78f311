"""The evaluation as one HTML file (no network, readable on a phone and on paper, light and dark), and as plotly figures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.io.atomic import write_text
from kerncast.core.io.foreign import read_json
from kerncast.core.io.html import visible
from kerncast.core.io.terminal import assignments
from kerncast.errors import NotFound
from kerncast.evaluating.points import part_of, worst_first
from kerncast.evaluating.report import charts, figures
from kerncast.evaluating.report.charts import Chart
from kerncast.evaluating.report.figures import duration, percent, problem_of, short
from kerncast.evaluating.results import Evaluation
from kerncast.evaluating.solutions import said
from kerncast.evaluating.text import CHOOSING, RUNTIME
from kerncast.models.manifest import IMPORTANCES
from kerncast.models.model import Model

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_IMPORTANCES = 20
MOST_PROBLEMS = 20
# Configs shown for one problem: all that are near the best, and an even sample of the rest.
MOST_CONFIGS = 300


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
    check_can_report()
    text = render(evaluation, model, budget)
    write_text(Path(path), text)


def render(evaluation: Evaluation, model: Model | None, budget: dict[str, Any] | None) -> str:
    """The whole file as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    summary = evaluation.as_json()
    choosing = summary["overall"]["efficiency_mean"] is not None
    fixed, varying = without_fixed(evaluation)
    has_times = _has_times(varying.rows)
    worst = worst_problems(varying.problems, varying.rows) if choosing or has_times else []
    sections = chart_sections(varying, model, budget, dtypes_of(evaluation.problems))
    # Text of the data as it is shown; what is HTML already stays as it is.
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    page = environment.from_string(_file("template.html.j2")).render(
        facts=_facts(summary, model, fixed),
        summary=summary,
        choosing=choosing,
        headline=figures.headline(summary),
        warnings=figures.warnings(summary),
        cards=figures.cards(summary),
        choosers=figures.compared(summary, CHOOSING),
        chooser_names=list(CHOOSING.values()),
        predictors=figures.compared(summary, RUNTIME),
        predictor_names=list(RUNTIME.values()),
        against=said(summary["against"]).split("\n") if summary.get("against") else [],
        rates=figures.rates(summary),
        worst_predictions=figures.worst_predictions(summary["worst_predictions"]) if choosing and has_times else [],
        placed=any(line.get("device") for line in summary["worst_predictions"]),
        sections=sections,
        slices=figures.slice_groups(summary["slices"]),
        worst=worst,
        importances=_importances(model),
        chart_data=Markup(embedded({chart.name: chart.figure for section in sections.values() for chart in section.charts})),
        worst_data=Markup(embedded([problem["data"] for problem in worst])),
        style=Markup(_file("style.css")),
        script=Markup(_file("report.js")),
        plotly=Markup(get_plotlyjs()),
    )
    return page if page.endswith("\n") else page + "\n"


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


def _importances(model: Model | None) -> list[tuple[str, str, str]]:
    """The features with the largest shares, each with the width of its bar and its share in words."""
    if model is None or not (model.path / IMPORTANCES).is_file():
        return []
    shares = read_json(model.path / IMPORTANCES, type=dict[str, float])
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:MOST_IMPORTANCES]
    return [(name, figures.width(share / ordered[0][1]), percent(share)) for name, share in ordered if share > 0]


# -- the charts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A heading with charts below it."""

    title: str
    charts: list[Chart]


def chart_sections(
    evaluation: Evaluation, model: Model | None, budget: dict[str, Any] | None, dtypes: list[str]
) -> dict[str, Section]:
    """The sections of charts by name; a section with nothing to show is left out."""
    summary, problems, rows = evaluation.as_json(), evaluation.problems, evaluation.rows
    choosing = summary["overall"]["efficiency_mean"] is not None
    choice: list[Chart | None] = []
    if choosing:
        choice.append(charts.efficiency_curve(problems, figures.levels(summary)))
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
        ("limits", "The device", [charts.roofline_chart(problems, device, dtypes, choosing)]),
        ("budget", "How much must be measured?", list(charts.budget_charts(budget))),
    ]
    sections = {name: Section(title, [chart for chart in drawn if chart is not None]) for name, title, drawn in made}
    return {name: section for name, section in sections.items() if section.charts}


class Charts(dict[str, "Figure"]):
    """Figures by name. A notebook shows all of them; elsewhere only their names are printed."""

    def __repr__(self) -> str:
        return f"Charts({', '.join(self)})"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for figure in self.values():
            display(figure)


def plotly_figures(evaluation: Evaluation, name: str | None = None) -> Charts | Figure:
    """Every chart that has something to show, by name, in the colours of the light page; or only the chart called `name`."""
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise NotFound.package("`plot()`", "plotly", "train") from error

    _, varying = without_fixed(evaluation)
    budget = None if evaluation.budget is None else dict(evaluation.budget)
    sections = chart_sections(varying, None, budget, dtypes_of(evaluation.problems))
    known = {chart.name: chart for section in sections.values() for chart in section.charts}
    if name is not None and name not in known:
        raise NotFound.named("chart of this evaluation", name, known)
    drawn = Charts()
    for own, chart in (known if name is None else {name: known[name]}).items():
        figure = _painted(chart.figure)
        layout = {"title": {"text": chart.title}, "template": "plotly_white", "hovermode": "closest", **figure["layout"]}
        drawn[own] = Figure(data=figure["data"], layout=layout)
    return drawn if name is None else drawn[name]


@cache
def _palette() -> dict[str, str]:
    """The colours of the light page, by name."""
    style = _file("style.css")
    return dict(re.findall(r"--([\w-]+): ([^;]+);", style[: style.index("@media")]))


def _painted(value: Any, key: str = "") -> Any:
    """A figure with colours in place of their names, as the page's script fills them in."""
    if isinstance(value, str):
        return _palette()[value[1:]] if value.startswith("@") and key.endswith("color") else value
    if isinstance(value, dict):
        return {name: _painted(item, name) for name, item in value.items()}
    if isinstance(value, list) and value and (isinstance(value[0], dict | list) or key.endswith("color")):
        return [_painted(item, key) for item in value]
    return value


# -- the worst problems, with every config that was measured on each: what a click opens -----------------


def worst_problems(problems: pl.DataFrame, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """The same problems in the same order as `Evaluation.worst`, in words, each with the `data` of its drill-down."""
    return [
        _worst(row, rows.filter(pl.col("number") == row["number"]))
        for row in worst_first(problems).head(MOST_PROBLEMS).iter_rows(named=True)
    ]


def _worst(row: dict[str, Any], measured: pl.DataFrame) -> dict[str, Any]:
    chosen, best = part_of(row, "chosen"), part_of(row, "best")
    predicted, real = row["predicted_ns"], row["chosen_ns"]
    return {
        "label": problem_of(row),
        "efficiency": percent(row["efficiency"]),
        "width": f"{100 * row['efficiency']:.2f}%",
        "chosen": assignments(chosen),
        "chosen_time": duration(real) if real is not None else "failed",
        "best": assignments(best),
        "best_time": duration(row["best_ns"]),
        "predicted_time": duration(predicted),
        "off": f"{real / predicted:.2f}×" if real is not None and predicted else "–",
        # Config parameters on which the chosen and the best differ: name, chosen, best.
        "parameters": [
            (name, str(chosen.get(name, "–")), str(best.get(name, "–")))
            for name in dict.fromkeys([*chosen, *best])
            if chosen.get(name) != best.get(name)
        ],
        "data": _configs(row, measured),
    }


def _configs(row: dict[str, Any], measured: pl.DataFrame) -> dict[str, Any]:
    """Columns of the table and points of the chart, fastest first."""
    names = [name for name in measured.columns if name.startswith("config.")]
    ordered = measured.sort("measured_ns", *names)
    varying = [name for name in names if ordered[name].n_unique() > 1]
    chosen, best = _place(ordered, names, row, "chosen"), _place(ordered, names, row, "best")
    kept = np.arange(ordered.height)
    if ordered.height > MOST_CONFIGS:
        spread = np.linspace(0, ordered.height - 1, MOST_CONFIGS // 2).round().astype(np.int64)
        marked = [place for place in (chosen, best) if place is not None]
        kept = np.unique(np.concatenate([np.arange(MOST_CONFIGS // 2), spread, np.array(marked, dtype=np.int64)]))
    shown = ordered[kept]
    position = {int(place): number for number, place in enumerate(kept)}
    return {
        "names": [name.removeprefix("config.") for name in varying],
        "configs": [
            ["–" if line[name] is None else str(line[name]) for name in varying] for line in shown.iter_rows(named=True)
        ],
        "rank": [int(place) + 1 for place in kept],
        "measured": short(shown["measured_ns"]),
        "predicted": short(shown["predicted_ns"]) if "predicted_ns" in shown.columns else None,
        "chosen": None if chosen is None else position[chosen],
        "best": None if best is None else position[best],
        "total": ordered.height,
    }


def _place(ordered: pl.DataFrame, names: list[str], row: dict[str, Any], part: str) -> int | None:
    """The position of the chosen or the best config; None for a choice that failed."""
    same = [pl.col(name).eq_missing(pl.lit(row[f"{part}.{name.removeprefix('config.')}"])) for name in names]
    if not same:
        return 0 if ordered.height else None
    places = ordered.select(pl.all_horizontal(same)).to_series().arg_true()
    return int(places[0]) if len(places) else None
