"""The tables: choosers, predictors, slices. The style sheet draws the bars, so that they print and reflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerncast.evaluating.report.words import between, percent

CHOOSING = (
    ("efficiency_mean", "mean"), ("efficiency_p10", "P10"), ("efficiency_p1", "P1"), ("efficiency_min", "worst"),
    ("efficiency_gmean", "geometric mean"), ("top1", "best chosen"),
)  # fmt: skip
RUNTIME = (
    ("mape", "MAPE"), ("median_ape", "median"), ("ape_p95", "P95"), ("rmsre", "RMSRE"), ("rrmse", "RRMSE"), ("r2", "R²"),
    ("r2_log", "R² of the log"), ("coverage_90", "90 % interval covers"),
)  # fmt: skip
PLAIN = {
    "random": "a random config",
    "best_single": "the best single config",
    "library": "the library's own choice",
    "roofline": "the roofline",
}


@dataclass(frozen=True)
class Bar:
    """A labelled bar: its text, and its length as a CSS percentage."""

    label: str
    text: str
    width: str


@dataclass(frozen=True)
class Line:
    """One line of a table: a bar first, then cells."""

    label: str
    bar: Bar | None
    cells: list[str]
    notes: list[str]
    ours: bool = False


@dataclass(frozen=True)
class SliceGroup:
    """One way to cut the data."""

    title: str
    lines: list[Line]


def bar(label: str, value: float, share: float) -> Bar:
    """A bar as long as `share` of its box."""
    return Bar(label, percent(value), f"{100 * min(max(share, 0.0), 1.0):.2f}%")


def plain_name(name: str) -> str:
    """A baseline in words."""
    if name.startswith("portfolio_") and name.endswith("_oracle"):
        return f"the best of {name.removeprefix('portfolio_').removesuffix('_oracle')} fixed configs (oracle)"
    return PLAIN.get(name, name)


def _value(figure: dict[str, Any] | None, name: str) -> str:
    if figure is None:
        return "–"
    return f"{figure['value']:.4f}" if name.startswith("r2") else percent(figure["value"])


def choosers(summary: dict[str, Any]) -> list[Line]:
    """The model and every baseline that chooses, best mean first, the model on top."""
    if summary["overall"]["efficiency_mean"] is None:
        return []
    others = {name: card for name, card in summary["baselines"].items() if card.get("efficiency_mean") is not None}
    ordered = sorted(others.items(), key=lambda item: (-item[1]["efficiency_mean"]["value"], item[0]))
    lines = []
    for label, card in [("the model", summary["overall"]), *((plain_name(name), card) for name, card in ordered)]:
        mean = card["efficiency_mean"]
        notes = [between(card.get(name)) for name, _ in CHOOSING]
        cells = [_value(card.get(name), name) for name, _ in CHOOSING]
        lines.append(Line(label, bar(label, mean["value"], mean["value"]), cells, notes, card is summary["overall"]))
    return lines


def predictors(summary: dict[str, Any]) -> list[Line]:
    """The model and every baseline that predicts a time."""
    cards = [("the model", summary["overall"]), *((plain_name(name), card) for name, card in summary["baselines"].items())]
    return [
        Line(
            label, None, [_value(card.get(name), name) for name, _ in RUNTIME],
            ["" if name.startswith("r2") else between(card.get(name)) for name, _ in RUNTIME], card is summary["overall"],
        )
        for label, card in cards
        if card.get("mape") is not None and summary["overall"].get("mape") is not None
    ]  # fmt: skip


def against(summary: dict[str, Any]) -> str:
    """Another system's solutions in one sentence, where they were given."""
    found = summary.get("against")
    if not found:
        return ""
    best = percent(found["solutions_best_efficiency_mean"])
    return (
        f"Against {found['name']}, on the {found['n_problems']:,} problems that both answer: the model gets "
        f"{percent(found['model_efficiency_mean'])}, the solutions {percent(found['solutions_efficiency_mean'])}"
        + (f" (the best of those listed {best})." if found["most_configs_measured"] > 1 else ".")
    )


def slice_groups(slices: list[dict[str, Any]]) -> list[SliceGroup]:
    """Slices grouped by how the data are cut, in the order of the evaluation; a cut with one part is left out."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in slices:
        groups.setdefault((item["of"], item["by"]), []).append(item)
    return [
        SliceGroup(f"{'problems' if of == 'problem' else of} by {by}", [_slice(item) for item in items])
        for (of, by), items in groups.items()
        if len(items) > 1
    ]


def _slice(item: dict[str, Any]) -> Line:
    mean = item["efficiency_mean"]
    cells = [
        f"{item['n_problems']:,}", percent(item["efficiency_p10"]), percent(item["efficiency_min"]), f"{item['n_rows']:,}",
        percent(item["mape"]),
    ]  # fmt: skip
    return Line(str(item["value"]), None if mean is None else bar("", mean, mean), cells, [])
