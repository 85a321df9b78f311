"""A model described: its card, and what its training data leave open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kerncast.core import rates
from kerncast.core.io import html
from kerncast.core.io.quoting import markdown_code, markdown_text, word
from kerncast.core.io.terminal import counted, distinct
from kerncast.core.parameters import Bool, Categorical
from kerncast.data.row_checks import isolated_sentence
from kerncast.learning.learners.gbdt import FEWEST_FAILURES
from kerncast.learning.trials import CONFIG
from kerncast.library.declared.declaration import is_written
from kerncast.library.problems import named_sets
from kerncast.models.limits.envelope import fact_words, range_words
from kerncast.models.manifest import EVALUATION, Manifest

if TYPE_CHECKING:
    from kerncast.models.model import Model


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
    "There is only one problem, so configs were held out instead of problems: the figures say how well unmeasured configs "
    "are predicted on this problem, and nothing about other problems."
)

NOT_EVALUATED = (
    "**Not evaluated.** The model was trained without folds (`--no-folds`): its errors are not known, and its "
    "predictions have no interval. `kerncast evaluate` with a dataset of other problems, or with `--split problem` on the "
    "one it was trained on, says how good it is."
)


def percent(figure: dict[str, float] | None) -> str:
    """`96.2 % (95.1 to 97.0)`."""
    if figure is None:
        return "-"
    if figure.get("lower") is None:
        return f"{figure['value']:.2%}"
    return f"{figure['value']:.2%} ({figure['lower']:.2%} to {figure['upper']:.2%})"


def _problems(evaluation: dict[str, Any]) -> str:
    # A model may be older than `pooled`.
    return f"{evaluation['overall']['n_problems']:,} problems{distinct(evaluation.get('pooled'))}"


def _figures(evaluation: dict[str, Any]) -> list[str]:
    overall = evaluation["overall"]
    how = "On one fixed hold-out by" if "warm_start" in evaluation else f"Out of fold, {evaluation['folds']} folds grouped by"
    lines = [
        f"{how} {evaluation['split']}, {_problems(evaluation)}; 95 % bootstrap intervals over problems.",
        *([ONE_PROBLEM] if evaluation["split"] == CONFIG else []),
        "",
        "| | model | " + " | ".join(map(markdown_text, evaluation["baselines"])) + " |",
        "|---|---|" + "---|" * len(evaluation["baselines"]),
    ]
    for name, title in ROWS:
        others = [percent(card.get(name)) for card in evaluation["baselines"].values()]
        if overall.get(name) is not None or any(text != "-" for text in others):
            lines.append(f"| {title} | {percent(overall.get(name))} | " + " | ".join(others) + " |")
    return lines


def model_card(manifest: Manifest, evaluation: dict[str, Any], importances: dict[str, float]) -> str:
    """The card as Markdown."""
    device = ", ".join(f"{markdown_text(item.title)} ({markdown_code(item.name)})" for item in manifest.devices)
    lines = [
        f"# {markdown_text(manifest.family)}, {markdown_text(manifest.kind)}",
        "",
        f"Predicts the time of {markdown_code(manifest.family)} on {device}"
        + (f" for {', '.join(map(markdown_text, manifest.dtypes))}" if manifest.dtypes else "")
        + ".",
        "",
        "## Trained on",
        "",
        f"{manifest.data.rows:,} measured vectors ({manifest.data.failures:,} of them failures), {manifest.data.problems:,} "
        f"problems in {manifest.data.groups:,} groups, {manifest.data.configs:,} configs; digest "
        f"{markdown_code(manifest.data.digest)}.",
        f"Software: {markdown_text('; '.join(manifest.software) or 'not recorded')}.",
        f"Noise of a label (median relative standard error): "
        f"{'unknown' if manifest.data.noise_floor is None else format(manifest.data.noise_floor, '.2%')}.",
        "",
        "## How good it is",
        "",
        *([NOT_EVALUATED] if not manifest.folds else _figures(evaluation)),
    ]
    lines += ["", "## Where it answers", "", "| parameter | trained on |", "|---|---|"]
    for name, seen in manifest.hull.items():
        trained = ", ".join(map(str, seen.labels)) if seen.labels else f"{seen.low} to {seen.high}"
        fact = manifest.facts.get(name)
        said = f"{trained}{'' if fact is None else f', {fact_words(fact)} only'}"
        lines.append(f"| {markdown_text(name)} | {markdown_text(said)} |")
    if manifest.features.left_out:
        needs = [f"{name} ({', '.join(numbers)})" for name, numbers in manifest.features.left_out.items()]
        lines += ["", f"Features left out because the device's profile lacks a number: {markdown_text(', '.join(needs))}."]
    for record in manifest.devices:
        told = ", ".join(rates.amount(name, value) for name, value in record.device.estimated.items())
        if told:
            lines += ["", markdown_text(
                f"Times are learned relative to {told} on {record.name}: its profile lacks these rates, and the fastest rows "
                "reached them."
            )]  # fmt: skip
    if importances:
        lines += ["", "## What it looks at", "", "| feature | share of the gain |", "|---|---|"]
        lines += [f"| {markdown_text(name)} | {share:.1%} |" for name, share in list(importances.items())[:15]]
    return "\n".join(lines) + "\n"


def summary_line(model: Model) -> str:
    """The model in one line: what it is for, what it learned from, how good it is."""
    manifest, figures = model.manifest, model.figures
    data = manifest.data
    parts = [f"{manifest.family}, {manifest.kind}, on {', '.join(item.name for item in manifest.devices)}"]
    if data.rows:
        parts.append(f"{data.rows:,} vectors, {data.problems:,} problems, {data.configs:,} configs")
    if figures is not None and figures.efficiency is not None:
        parts.append(f"mean efficiency {figures.efficiency.mean.value:.1%} held out")
    elif figures is not None and figures.runtime is not None:
        parts.append(f"MAPE {figures.runtime.mape.value:.1%} held out")
    return f"Model({'; '.join(parts)}; {model.path})"


def card_line(model: Model, device: str | None = None) -> str:
    """One line of the card: what the model is of, what it learned from, and how wrong it was on problems held out."""
    manifest, data = model.manifest, model.manifest.data
    names = [item.name for item in manifest.devices]
    where = ", ".join(names) if len(names) <= 3 else f"{len(names)} devices"
    parts = [f"{manifest.family} on {where}: {data.rows:,} measurements of {data.problems:,} problems"]
    if model.figures is not None and model.figures.runtime is not None:
        own = model.evaluation.get("held_out", {}).get("device", {}).get(device)
        there = "" if own is None or len(names) == 1 else f" ({own['mape']:.1%} on {device})"
        parts.append(f"MAPE {model.figures.runtime.mape.value:.1%} held out{there}")
    return "; ".join(parts)


def card_html(model: Model) -> str:
    """The card for a notebook."""
    manifest, data = model.manifest, model.manifest.data
    facts: list[tuple[str, object]] = [
        ("device", ", ".join(f"{item.title} ({item.name})" for item in manifest.devices)),
        ("predicts", f"{manifest.target}{' (logarithm)' if manifest.target_log else ''}"),
        ("software", "; ".join(manifest.software) or "not recorded"),
    ]
    if data.rows:
        facts.append(
            (
                "trained on",
                f"{data.rows:,} vectors ({data.failures:,} failures), {data.problems:,} problems, {data.configs:,} configs",
            )
        )
        facts.append(("noise of a label", "unknown" if data.noise_floor is None else f"{data.noise_floor:.2%}"))
    facts.append(("folder", model.path))
    parts = [html.facts(facts)]
    if model.figures is not None:
        parts.append(_figures_html(model.evaluation))
    if manifest.hull:
        common = manifest.facts
        rows = [
            (name, range_words(seen) + (f", {fact_words(common[name])} only" if name in common else ""))
            for name, seen in manifest.hull.items()
        ]
        parts.append(html.table(("parameter", "trained on"), rows, "where it answers"))
    return html.panel(f"{manifest.family}, {manifest.kind}", *parts)


def _figures_html(evaluation: dict[str, Any]) -> str:
    overall, others = evaluation["overall"], evaluation["baselines"]
    rows = []
    for name, title in ROWS:
        cards = [card.get(name) for card in (overall, *others.values())]
        if any(card is not None for card in cards):
            between = percent(overall.get(name)).partition(" (")[2].removesuffix(")")
            mine, *theirs = (percent(card).partition(" (")[0] for card in cards)
            rows.append((title, mine, between, *theirs))
    columns = ("", "model", "95 % interval", *others)
    title = f"how good it is ({_problems(evaluation)}, held out by {evaluation['split']})"
    return html.table(columns, rows, title, columns[1:])


# A problem set with sizes that are not multiples of anything, for the ops that have one.
UNALIGNED = "edge"


def data_notes(model: Model) -> list[str]:
    """One sentence each; the first word of a warning is `!`, that of a remark `-`."""
    return [*_isolated(model), *_rules(model), *_failures(model), *_facts(model), *_labels(model), *_rates(model)]


def _isolated(model: Model) -> Iterator[str]:
    found = model.evaluation.get("isolated_times") if EVALUATION in model.manifest.files else None
    if found is not None:
        yield f"! {isolated_sentence(found)}"


def _rules(model: Model) -> Iterator[str]:
    broken = model.evaluation.get("broken_rules", []) if EVALUATION in model.manifest.files else []
    for item in broken:
        share = f"{item['ran']:,} of {item['attempts']:,} rows that break a constraint worked ({item['sentence']})"
        if item["obeyed"]:
            yield f"! {share}: the constraint or these rows are wrong, see `kerncast inspect`; such configs are not chosen"
        else:
            yield f"! {share}: the model does not apply this constraint"


def _failures(model: Model) -> Iterator[str]:
    family, failures = model.family, model.manifest.data.failures
    if not (family.config.parameters and family.can_fail and model.manifest.data.rows):
        return
    if 0 < failures < FEWEST_FAILURES:
        yield (
            f"! {counted(failures, 'row')} failed; nothing is learned from fewer than {FEWEST_FAILURES}, so a config that "
            "failed on a problem may be chosen for it: measure more that fail, or declare a constraint"
        )
    if not failures:
        rules = len(family.config.constraints)
        some = f"the {rules} constraint{'s' * (rules > 1)} of {family.id}"
        known = some if rules else f"{family.id} has no constraints either: nothing"
        yield (
            f"! no row failed, so the model cannot tell what will not run: {known} must rule it out; keep failed attempts in "
            "the data (their status says why), or declare a constraint"
        )


def _facts(model: Model) -> Iterator[str]:
    op = model.family.op
    collect = f"`kerncast collect {word(model.family.id)} --problems {UNALIGNED}`"
    how = collect if UNALIGNED in named_sets(op) else "add some to the data"
    for name, fact in model.manifest.facts.items():
        yield (
            f"! {name} was always {_one_of(fact_words(fact))}, though {op.name} allows any: with other values an answer is "
            f"out_of_range, for nothing like it was measured; measure some ({how})"
        )


def _one_of(words: str) -> str:
    return {"odd numbers": "an odd number"}.get(words, f"a {words.replace('multiples', 'multiple')}")


def _labels(model: Model) -> Iterator[str]:
    found = []
    for name, parameter in model.family.problem.parameters.items():
        seen = model.manifest.hull.get(name)
        if isinstance(parameter, Categorical | Bool) and seen is not None and len(seen.labels) == 1 and parameter.size > 1:
            label = seen.labels[0]
            found.append(f"{name}={str(label).lower() if isinstance(label, bool) else label}")
    if found:
        refused = "out_of_range" if model.family.config.parameters else "unsupported"
        yield f"- only {' '.join(found)} was measured: with other values an answer is {refused}"


def _rates(model: Model) -> Iterator[str]:
    manifest = model.manifest
    machines = {record.device: manifest.dtypes_on(record.name) or None for record in manifest.devices}
    for note in rates.notes(model.family, machines, own=is_written(model.family)):
        yield f"- {note}"
