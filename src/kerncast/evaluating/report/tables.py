"""The tables: choosers, predictors, slices. The style sheet draws the bars, so that they print and reflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerncast.core.io.terminal import three_digits
from kerncast.evaluating.report.words import assignments, between, duration, percent
from kerncast.evaluating.text import NOT_SHARES, RATE_WORDS

CHOOSING = (
    ("efficiency_mean", "mean"), ("efficiency_p50", "P50"), ("efficiency_p10", "P10"), ("efficiency_p1", "P1"),
    ("efficiency_min", "worst"), ("efficiency_gmean", "geometric mean"), ("top1", "best chosen"),
)  # fmt: skip
RUNTIME = (
    ("mape", "MAPE"), ("median_ape", "median"), ("ape_p95", "P95"), ("rmsre", "RMSRE"), ("rrmse", "RRMSE"),
    ("mse_log", "MSE of the log"), ("rmse_log", "RMSE of the log"), ("exp_rmse_log", "exp(RMSE of the log)"), ("r2", "R²"),
    ("r2_log", "R² of the log"), ("coverage_90", "90 % interval covers"),
)  # fmt: skip
MOST_PREDICTIONS = 20
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
    return f"{figure['value']:.4f}" if name in NOT_SHARES else percent(figure["value"])


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
            ["" if name in NOT_SHARES else between(card.get(name)) for name, _ in RUNTIME], card is summary["overall"],
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
    best = item["n_best"]
    cells = [percent(item[f"efficiency_{name}"]) for name in ("p50", "p10", "min")]
    cells += ["–", "–"] if best is None else [f"{best:,}", percent(item["efficiency_mean_where_best"])]
    cells += [f"{item['n_problems']:,}", f"{item['n_rows']:,}", percent(item["mape"])]
    return Line(str(item["value"]), None if mean is None else bar("", mean, mean), cells, [])


def worst_predictions(lines: list[dict[str, Any]]) -> list[list[str]]:
    """The rows whose times are furthest off, as cells."""
    return [
        [f"{line['ratio']:.3g}", *([line["device"]] if line.get("device") else ()), assignments(line["problem"]),
         assignments(line["config"]) or "the only config", duration(line["measured_ns"]), duration(line["predicted_ns"])]
        for line in lines[:MOST_PREDICTIONS]
    ]  # fmt: skip


def rates(summary: dict[str, Any]) -> str:
    """The rates of the chosen and the best configs in one sentence; empty where the op's work is unknown."""
    parts, choosing = [], summary["overall"]["efficiency_mean"] is not None
    for name, said in RATE_WORDS.items():
        found = summary["rates"][name]
        if found is None:
            continue
        chosen, best = (three_digits(found[side]["p50"]) for side in ("chosen", "best"))
        parts.append(f"{chosen} {said}" + (f" (the best configs {best})" if choosing else ""))
    return f"On half of the problems at least {' and '.join(parts)}." if parts else ""
