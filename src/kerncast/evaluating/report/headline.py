"""The top of the page: one sentence, the cards, and the warnings to read before the figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerncast.core.io.terminal import counted, distinct
from kerncast.core.op.limits import sentence
from kerncast.evaluating.report.tables import plain_name
from kerncast.evaluating.report.words import between, percent
from kerncast.evaluating.text import NOT_RECORDED, unknown_sentence, untrained_sentence

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


@dataclass(frozen=True)
class Card:
    """A figure to look at first."""

    title: str
    value: str
    interval: str
    beside: str
    meaning: str


@dataclass(frozen=True)
class Mark:
    """A place on the headline's scale."""

    label: str
    text: str
    at: str
    style: str


@dataclass(frozen=True)
class Headline:
    """The big number, the sentence below it, and the scale."""

    value: str
    what: str
    sentence: str
    fill: str
    marks: list[Mark]


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
    return name, summary["baselines"][name][figure]["value"]


def cards(summary: dict[str, Any]) -> list[Card]:
    """The cards that apply, each with its interval and the best baseline."""
    overall = summary["overall"]
    found = [Card("problems", f"{overall['n_problems']:,}", "", "", _counted(summary))]
    for title, figure, least, meaning in CARDS:
        value = overall.get(figure)
        if value is None:
            continue
        baseline = best_baseline(summary, figure, least)
        beside = f"{plain_name(baseline[0])}: {percent(baseline[1])}" if baseline else ""
        if figure == "top1" and overall.get("top1_ties"):
            meaning += f"; {percent(overall['top1_ties']['value'])} counting ties within the noise"
        if figure == "noise_ceiling" and overall["efficiency_mean"] and value["value"] < overall["efficiency_mean"]["value"]:
            meaning = "rough: it is of the few problems measured twice, and on all problems the model scored more"
        found.append(Card(title, percent(value["value"]), between(value), beside, meaning))
    return [*found[1:], found[0]]


def _counted(summary: dict[str, Any]) -> str:
    noise = summary.get("noise_floor")
    text = f"on which at least one config worked{distinct(summary['pooled'])}"
    return text if noise is None else f"{text}; a label's relative standard error is {percent(noise, 2)}"


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
        sentence = f"On {count}{unseen}. {summary['family']} has nothing to choose: only the predicted time counts."
        return Headline(percent(mape["value"]), "mean error of the predicted time", sentence, "", [])
    sure = f" (95 % interval {between(mean)})" if between(mean) else ""
    sentence = (
        f"On {count}{unseen}, the config the model chooses runs at {percent(mean['value'])} of the best measured speed{sure}."
    )
    marks = []
    baseline = best_baseline(summary, "efficiency_mean", False)
    if baseline:
        name = plain_name(baseline[0])
        sentence += f" The best baseline, {name}, gets {percent(baseline[1])}"
        sentence += "." if mean["value"] > baseline[1] else ": the model does not beat it."
        marks.append(Mark(name, percent(baseline[1]), _at(baseline[1]), "baseline"))
    if overall.get("noise_ceiling"):
        ceiling = overall["noise_ceiling"]["value"]
        marks.append(Mark("noise ceiling", percent(ceiling), _at(ceiling), "ceiling"))
    return Headline(percent(mean["value"]), "of the best measured speed, on average", sentence, _at(mean["value"]), marks)


def _at(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.2f}%"


def levels(summary: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """The horizontal lines of the efficiency curve: the baseline to beat and the noise ceiling."""
    found = {}
    baseline = best_baseline(summary, "efficiency_mean", False)
    if baseline:
        found[f"mean of {plain_name(baseline[0])}"] = (baseline[1], "@accent")
    ceiling = summary["overall"].get("noise_ceiling")
    if ceiling:
        found["noise ceiling"] = (ceiling["value"], "@best")
    return found


def warnings(summary: dict[str, Any]) -> list[str]:
    """Warnings: what makes the figures look better than they are, or leaves some out."""
    seen, found = summary["problems_seen_in_training"], []
    if summary["includes_training_data"]:
        found.append(
            f"{seen:,} of these problems were trained on. These figures say how well the model remembers, not how well it "
            "will choose: judge it on other problems, or with `split`."
        )
    elif seen:
        found.append(f"{seen:,} problems that the model was trained on were left out.")
    if not summary.get("training_recorded", True):
        found.append(f"{NOT_RECORDED[0].upper()}{NOT_RECORDED[1:]}.")
    if summary.get("untrained_labels"):
        found.append(f"{untrained_sentence(summary['untrained_labels'])}.")
    if summary.get("unknown_configs"):
        found.append(f"{unknown_sentence(summary['unknown_configs'])}.")
    if summary["overall"]["efficiency_mean"] is not None and summary["overall"].get("noise_ceiling") is None:
        found.append(
            "Too few problems were measured at two different times, so the noise ceiling is unknown: collect a second time, "
            "and evaluate on both."
        )
    impossible = summary.get("faster_than_possible")
    if impossible and impossible["rows"]:
        text = sentence(impossible)
        found.append(f"{text[0].upper()}{text[1:]}.")
    return found
