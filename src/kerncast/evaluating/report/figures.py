"""The figures as a person reads them: the headline, the cards and the tables of the page, and what a notebook shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kerncast.core.io import html
from kerncast.core.io.terminal import assignments, counted, distinct, on_device, three_digits
from kerncast.core.op.limits import sentence
from kerncast.evaluating.points import part_of
from kerncast.evaluating.text import CHOOSING, NOT_SHARES, RATE_WORDS, remarks

if TYPE_CHECKING:
    from kerncast.evaluating.results import Evaluation

# Title, figure, whether less is better, what it means.
CARDS = (
    ("mean efficiency", "efficiency_mean", False, "speed of the choice, as a share of the fastest measured"),
    ("P10 efficiency", "efficiency_p10", False, "nine problems in ten do better than this"),
    ("worst efficiency", "efficiency_min", False, "the problem that loses most"),
    ("best config chosen", "top1", False, "share of problems on which the choice was the very best"),
    ("noise ceiling", "noise_ceiling", False, "what a perfect chooser would score on measurements this noisy"),
    ("MAPE of the time", "mape", True, "mean distance of predicted from measured time"),
    ("90 % interval covers", "coverage_90", False, "share of rows inside their interval; 90 % was promised"),
)
PLAIN = {
    "random": "a random config",
    "best_single": "the best single config",
    "library": "the library's own choice",
    "roofline": "the roofline",
}
MOST_PREDICTIONS = 20
# Six digits draw the same picture as seventeen, in a third of the bytes.
DIGITS = 6


# -- numbers and labels --------------------------------------------------------------------------------


def percent(value: float | None, digits: int = 1) -> str:
    """`97.3 %`; a value below 100 % never rounds up to 100, and one above 0 never rounds down to 0."""
    if value is None:
        return "–"
    text = f"{100 * value:.{digits}f}"
    step = 10.0**-digits
    if value < 1 and float(text) >= 100:
        text = f"{100 - step:.{digits}f}"
    if value > 0 and float(text) <= 0:
        text = f"{step:.{digits}f}"
    return f"{text} %"


def between(figure: Mapping[str, float | None] | None) -> str:
    """The interval of a figure: `96.1 to 98.0 %`, or nothing."""
    if figure is None or figure.get("lower") is None:
        return ""
    return f"{percent(figure['lower']).removesuffix(' %')} to {percent(figure['upper'])}"


def duration(nanoseconds: float | None) -> str:
    """`12.3 µs`."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return "–"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= factor * 0.9995:
            return f"{three_digits(nanoseconds / factor)} {unit}"
    return f"{three_digits(nanoseconds)} ns"


def problem_of(row: Mapping[str, Any]) -> str:
    """The problem of a row, and its device where there are several."""
    return f"{assignments(part_of(row, 'problem'))}{on_device(row)}"


def short(values: Iterable[Any]) -> list[float | None]:
    """Numbers for the page: six digits, null for what is not finite."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}") for value in values]


def width(share: float) -> str:
    """The length of a bar that is this share of its box, for the style sheet, which draws it: so it prints and reflows."""
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def plain_name(name: str) -> str:
    """A baseline in words."""
    if name.startswith("portfolio_") and name.endswith("_oracle"):
        return f"the best of {name.removeprefix('portfolio_').removesuffix('_oracle')} fixed configs (oracle)"
    return PLAIN.get(name, name)


# -- the top of the page -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """A figure to look at first."""

    title: str
    value: str
    interval: str
    beside: str
    meaning: str


@dataclass(frozen=True)
class Headline:
    """The big number, the sentence below it, and the scale, with marks: label, value in words, place, style."""

    value: str
    what: str
    sentence: str
    fill: str
    marks: tuple[tuple[str, str, str, str], ...] = ()


def best_baseline(summary: dict[str, Any], figure: str, least: bool) -> tuple[str, float] | None:
    """The baseline to beat, the same for all figures of a kind. Oracles do not count: they measure before they choose."""
    by = "mape" if least else "efficiency_mean"
    known = [
        (card[by]["value"], name)
        for name, card in summary["baselines"].items()
        if card.get(by) is not None and card.get(figure) is not None and not name.endswith("_oracle")
    ]
    if not known:
        return None
    name = (min(known) if least else max(known))[1]
    return plain_name(name), summary["baselines"][name][figure]["value"]


def cards(summary: dict[str, Any]) -> list[Card]:
    """The cards that apply, each with its interval and the best baseline."""
    overall, listed = summary["overall"], []
    for title, figure, least, meaning in CARDS:
        value = overall.get(figure)
        if value is None:
            continue
        baseline = best_baseline(summary, figure, least)
        beside = f"{baseline[0]}: {percent(baseline[1])}" if baseline else ""
        if figure == "top1" and overall.get("top1_ties"):
            meaning += f"; {percent(overall['top1_ties']['value'])} counting ties within the noise"
        if figure == "noise_ceiling" and overall["efficiency_mean"] and value["value"] < overall["efficiency_mean"]["value"]:
            meaning = "rough: it is of the few problems measured twice, and on all problems the model scored more"
        listed.append(Card(title, percent(value["value"]), between(value), beside, meaning))
    noise = summary.get("noise_floor")
    meaning = f"on which at least one config worked{distinct(summary['pooled'])}"
    meaning += "" if noise is None else f"; a label's relative standard error is {percent(noise, 2)}"
    return [*listed, Card("problems", f"{overall['n_problems']:,}", "", "", meaning)]


def headline(summary: dict[str, Any]) -> Headline | None:
    """What the model is worth, in a number and a sentence."""
    overall = summary["overall"]
    mean, mape = overall["efficiency_mean"], overall.get("mape")
    count = counted(overall["n_problems"], "problem")
    if summary["pooled"]:
        count += f" ({distinct(summary['pooled'])[2:]})"
    known_unseen = not summary["includes_training_data"] and summary.get("training_recorded", True)
    unseen = " it had not seen" if known_unseen else ""
    if mean is None and mape is None:
        return None
    if mean is None:
        text = f"On {count}{unseen}. {summary['family']} has nothing to choose: only the predicted time counts."
        return Headline(percent(mape["value"]), "mean error of the predicted time", text, "")
    sure = f" (95 % interval {between(mean)})" if between(mean) else ""
    text = (
        f"On {count}{unseen}, the config the model chooses runs at {percent(mean['value'])} of the best measured speed{sure}."
    )
    marks = []
    baseline = best_baseline(summary, "efficiency_mean", False)
    if baseline:
        name, value = baseline
        text += f" The best baseline, {name}, gets {percent(value)}"
        text += "." if mean["value"] > value else ": the model does not beat it."
        marks.append((name, percent(value), width(value), "baseline"))
    if overall.get("noise_ceiling"):
        ceiling = overall["noise_ceiling"]["value"]
        marks.append(("noise ceiling", percent(ceiling), width(ceiling), "ceiling"))
    return Headline(percent(mean["value"]), "of the best measured speed, on average", text, width(mean["value"]), tuple(marks))


def levels(summary: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """The horizontal lines of the efficiency curve: the baseline to beat and the noise ceiling."""
    baseline, ceiling = best_baseline(summary, "efficiency_mean", False), summary["overall"].get("noise_ceiling")
    lines = {f"mean of {baseline[0]}": (baseline[1], "@accent")} if baseline else {}
    return lines | ({"noise ceiling": (ceiling["value"], "@best")} if ceiling else {})


def warnings(summary: dict[str, Any]) -> list[str]:
    """What makes the figures look better than they are, or leaves some out, as sentences."""
    listed = [text.removeprefix("! ") for text in remarks(summary)]
    if summary["includes_training_data"]:
        listed[0] += (
            ", and say how well the model remembers, not how well it will choose. Judge it on other problems, or with `split`"
        )
    if summary["overall"]["efficiency_mean"] is not None and summary["overall"].get("noise_ceiling") is None:
        listed.append(
            "too few problems were measured at two different times, so the noise ceiling is unknown: collect a second time, "
            "and evaluate on both"
        )
    impossible = summary.get("faster_than_possible")
    if impossible and impossible["rows"]:
        listed.append(sentence(impossible))
    return [f"{text[0].upper()}{text[1:]}." for text in listed]


# -- the tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One line of a table: a bar of this width, if any, and cells with what is written small below each."""

    label: str
    cells: list[tuple[str, str]]
    width: str = ""
    ours: bool = False


def compared(summary: dict[str, Any], figures: Mapping[str, str]) -> list[Line]:
    """The model, on top, and every baseline that has these figures: those that choose with the best mean first."""
    leading = next(iter(figures))
    if summary["overall"].get(leading) is None:
        return []
    others = [(name, card) for name, card in summary["baselines"].items() if card.get(leading) is not None]
    choosing = figures is CHOOSING
    if choosing:
        others.sort(key=lambda item: (-item[1][leading]["value"], item[0]))
    return [
        Line(label, [_cell(card.get(name), name) for name in figures], width(card[leading]["value"]) if choosing else "", ours)
        for label, card, ours in [
            ("the model", summary["overall"], True), *((plain_name(name), card, False) for name, card in others),
        ]
    ]  # fmt: skip


def _cell(figure: dict[str, Any] | None, name: str) -> tuple[str, str]:
    if figure is None:
        return "–", ""
    return (f"{figure['value']:.4f}", "") if name in NOT_SHARES else (percent(figure["value"]), between(figure))


def slice_groups(slices: list[dict[str, Any]]) -> dict[str, list[Line]]:
    """Slices by how the data are cut, in the order of the evaluation; a cut with one part is left out."""
    groups: dict[str, list[Line]] = {}
    for item in slices:
        mean, best = item["efficiency_mean"], item["n_best"]
        cells = [percent(mean), *(percent(item[f"efficiency_{name}"]) for name in ("p50", "p10", "min"))]
        cells += ["–", "–"] if best is None else [f"{best:,}", percent(item["efficiency_mean_where_best"])]
        cells += [f"{item['n_problems']:,}", f"{item['n_rows']:,}", percent(item["mape"])]
        line = Line(str(item["value"]), [(cell, "") for cell in cells], "0" if mean is None else width(mean))
        groups.setdefault(f"{'problems' if item['of'] == 'problem' else item['of']} by {item['by']}", []).append(line)
    return {title: lines for title, lines in groups.items() if len(lines) > 1}


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
    for name, unit in RATE_WORDS.items():
        sides = summary["rates"][name]
        if sides is not None:
            chosen, best = (three_digits(sides[side]["p50"]) for side in ("chosen", "best"))
            parts.append(f"{chosen} {unit}" + (f" (the best configs {best})" if choosing else ""))
    return f"On half of the problems at least {' and '.join(parts)}." if parts else ""


# -- a notebook's cell: no script, no style sheet --------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 560, 220, 46, 12, 34, 10
# More points than this draw the same line.
MOST_POINTS = 400
COLOURS = {"@model": "#5b78e6", "@accent": "#d9772e", "@best": "#1fa07e"}
TILE = "border:1px solid rgba(128,128,128,0.35);border-radius:8px;padding:0.5em 0.8em;min-width:9em;max-width:14em"


def evaluation_html(evaluation: Evaluation) -> str:
    """The whole cell: the headline, the cards, the efficiency curve, and all figures as text."""
    summary = evaluation.as_json()
    top = headline(summary)
    parts = [html.note(text) for text in [*warnings(summary), *([] if top is None else [top.sentence])]]
    tiles = "".join(_tile(card) for card in cards(summary))
    parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:0.5em;margin:0.6em 0">{tiles}</div>')
    if evaluation.overall.efficiency is not None and evaluation.problems.height:
        parts.append(_curve(evaluation, summary))
    parts.append(
        f'<details><summary>all figures</summary><pre style="overflow-x:auto">{html.escape(evaluation)}</pre></details>'
    )
    return html.panel(f"{evaluation.family}: {counted(evaluation.n, 'problem')}{distinct(summary['pooled'])}", *parts)


def _tile(card: Card) -> str:
    small = [text for text in (card.interval, card.beside) if text]
    lines = "".join(f'<div style="font-size:0.8em;opacity:0.75">{html.escape(text)}</div>' for text in small)
    title, value = html.escape(card.title), html.escape(card.value)
    return (
        f'<div style="{TILE}" title="{html.escape(card.meaning)}"><div style="font-size:0.85em;opacity:0.8">{title}</div>'
        f'<div style="font-size:1.4em;font-weight:600">{value}</div>{lines}</div>'
    )


def _curve(evaluation: Evaluation, summary: dict[str, Any]) -> str:
    """Every problem from the worst to the best, as a line; the baseline to beat and the noise ceiling across it."""
    values = np.sort(evaluation.problems["efficiency"].to_numpy())
    kept = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).round().astype(int))
    lines = levels(summary)
    least = min(float(values[0]), *(value for value, _ in lines.values()), 0.99)
    low = max(0.0, math.floor(10 * least - 0.5) / 10)

    def x(share: float) -> str:
        return f"{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}"

    def y(value: float, below: float = 0.0) -> str:
        return f"{TOP + (1.0 - (value - low) / (1.0 - low)) * (HEIGHT - TOP - BOTTOM) + below:.1f}"

    def across(value: float, style: str) -> str:
        return f'<line x1="{x(0)}" x2="{x(1)}" y1="{y(value)}" y2="{y(value)}" {style}/>'

    def text(at: str, down: str, anchor: str, words: str) -> str:
        return f'<text x="{at}" y="{down}" text-anchor="{anchor}" font-size="11" fill="currentColor">{words}</text>'

    drawn = []
    for value in np.arange(1.0, low - 1e-9, -0.1 if low >= 0.5 else -0.2):
        drawn.append(across(value, 'stroke="currentColor" stroke-opacity="0.15"'))
        drawn.append(text(str(LEFT - 6), y(value, 4), "end", f"{value:.0%}"))
    for share in (0.0, 0.25, 0.5, 0.75):
        drawn.append(text(x(share), str(HEIGHT - BOTTOM + 18), "middle", f"{share:.0%}"))
    drawn.append(text(x(1.0), str(HEIGHT - BOTTOM + 18), "end", "100% of problems"))
    drawn += [
        across(value, f'stroke="{COLOURS[colour]}" stroke-width="1.5" stroke-dasharray="5 4"')
        for value, colour in lines.values()
    ]
    points = [f"{x((place + 1) / len(values))},{y(float(values[place]))}" for place in kept]
    if len(points) == 1:  # a single problem is a flat line
        points = [f"{x(0)},{y(float(values[0]))}", *points]
    drawn.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS["@model"]}" stroke-width="2"/>')
    keys = {"the model's choice": "@model", **{f"{name}, {percent(at)}": colour for name, (at, colour) in lines.items()}}
    legend = " ".join(
        f'<span style="margin-right:1em"><span style="color:{COLOURS[colour]}">&#9644;</span> {html.escape(words)}</span>'
        for words, colour in keys.items()
    )
    return (
        f'<div style="font-size:0.85em">{legend}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        'aria-label="Efficiency by share of problems, from the worst to the best" style="max-width:100%;height:auto">'
        f"{''.join(drawn)}</svg>"
    )
