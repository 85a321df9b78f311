"""MODEL_CARD.md: what a person should know of a model before trusting it."""

from __future__ import annotations

from typing import Any

from kerncast.models.manifest import Manifest
from kerncast.scoring.splits import CONFIG

ROWS = (
    ("efficiency_mean", "efficiency, mean"),
    ("efficiency_p10", "efficiency, P10"),
    ("efficiency_p1", "efficiency, P1"),
    ("efficiency_min", "efficiency, worst"),
    ("top1", "best config chosen"),
    ("noise_ceiling", "noise ceiling"),
    ("mape", "MAPE of the time"),
    ("ape_p95", "P95 of the error"),
    ("coverage_90", "90 % interval covers"),
)
ONE_PROBLEM = (
    "There is one problem only, so configs were held out instead of problems: the figures say how well configs that were "
    "not measured are predicted on this problem, and nothing of other problems."
)


def percent(figure: dict[str, float] | None) -> str:
    """`96.2 % (95.1 to 97.0)`."""
    if figure is None:
        return "-"
    if figure.get("lower") is None:
        return f"{figure['value']:.2%}"
    return f"{figure['value']:.2%} ({figure['lower']:.2%} to {figure['upper']:.2%})"


def model_card(manifest: Manifest, evaluation: dict[str, Any], importances: dict[str, float]) -> str:
    """The card as Markdown."""
    overall = evaluation["overall"]
    how = "On one fixed hold-out by" if "warm_start" in evaluation else f"Out of fold, {evaluation['folds']} folds grouped by"
    device = ", ".join(f"{item.title} (`{item.name}`)" for item in manifest.devices)
    lines = [
        f"# {manifest.family}, {manifest.kind}",
        "",
        f"Predicts the time of `{manifest.family}` on {device}"
        + (f" for {', '.join(manifest.dtypes)}" if manifest.dtypes else "")
        + ".",
        "",
        "## Trained on",
        "",
        f"{manifest.data.rows:,} measured vectors ({manifest.data.failures:,} of them failures), {manifest.data.problems:,} "
        f"problems in {manifest.data.groups:,} groups, {manifest.data.configs:,} configs; digest `{manifest.data.digest}`.",
        f"Software: {'; '.join(manifest.software) or 'not recorded'}.",
        f"Noise of a label (median relative standard error): "
        f"{'unknown' if manifest.data.noise_floor is None else format(manifest.data.noise_floor, '.2%')}.",
        "",
        "## How good it is",
        "",
        f"{how} {evaluation['split']}, {overall['n_problems']:,} problems; 95 % bootstrap intervals over problems.",
        *([ONE_PROBLEM] if evaluation["split"] == CONFIG else []),
        "",
        "| | model | " + " | ".join(evaluation["baselines"]) + " |",
        "|---|---|" + "---|" * len(evaluation["baselines"]),
    ]
    for name, title in ROWS:
        others = [percent(card.get(name)) for card in evaluation["baselines"].values()]
        if overall.get(name) is not None or any(text != "-" for text in others):
            lines.append(f"| {title} | {percent(overall.get(name))} | " + " | ".join(others) + " |")
    lines += ["", "## Where it answers", "", "| parameter | trained on |", "|---|---|"]
    for name, seen in manifest.hull.items():
        lines.append(f"| {name} | {', '.join(map(str, seen.labels)) if seen.labels else f'{seen.low} to {seen.high}'} |")
    if manifest.features.left_out:
        needs = [f"{name} ({', '.join(numbers)})" for name, numbers in manifest.features.left_out.items()]
        lines += ["", f"Features left out because the device's profile lacks a number: {', '.join(needs)}."]
    if importances:
        lines += ["", "## What it looks at", "", "| feature | share of the gain |", "|---|---|"]
        lines += [f"| {name} | {share:.1%} |" for name, share in list(importances.items())[:15]]
    return "\n".join(lines) + "\n"
