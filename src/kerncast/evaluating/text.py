"""Results as text: lines and tables, in the order in which they are read. `str` joins them, the command line draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kerncast.core.io.terminal import TextTable, assignments, counted, distinct, duration, printable, three_digits
from kerncast.core.op.declaration import BANDWIDTH, TFLOPS
from kerncast.core.op.limits import sentence
from kerncast.evaluating.solutions import said
from kerncast.learning.metrics import LOG_ERRORS

Block = str | TextTable

# The figures of a choice and of a predicted time: name, and what they are called.
CHOOSING = {
    "efficiency_mean": "mean", "efficiency_p50": "P50", "efficiency_p10": "P10", "efficiency_p1": "P1",
    "efficiency_min": "worst", "efficiency_gmean": "geometric mean", "top1": "best chosen", "regret_mean": "regret, mean",
}  # fmt: skip
RUNTIME = {
    "mape": "MAPE", "median_ape": "median", "ape_p95": "P95", "rmsre": "RMSRE", "rrmse": "RRMSE",
    "mse_log": "MSE of the log", "rmse_log": "RMSE of the log", "exp_rmse_log": "exp(RMSE of the log)", "r2": "R²",
    "r2_log": "R² of the log", "coverage_90": "90 % interval covers",
}  # fmt: skip
SIMPLE_CHOICES = {"random": "a random config has", "best_single": "the best fixed config has"}
SEEDED = (("efficiency_mean", "mean efficiency"), ("efficiency_p10", "P10"), ("mape", "MAPE"))
# Figures that are not shares.
NOT_SHARES = (*LOG_ERRORS, "r2", "r2_log")
RATE_WORDS = {TFLOPS: "TFLOPS", BANDWIDTH: "GB/s"}
UNKNOWN_CEILING = "noise ceiling unknown (too few problems were measured at two different times)"
# How many of the worst problems are listed.
WORST = 10


def joined(blocks: Iterable[Block]) -> str:
    """All blocks as one text."""
    return "\n".join(str(block) if isinstance(block, TextTable) else _lines(block) for block in blocks).strip("\n")


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def value(figure: Mapping[str, float] | None, percent: bool = True) -> str:
    """A figure without its interval."""
    if figure is None:
        return "-"
    return f"{figure['value']:.2%}" if percent else f"{figure['value']:.4f}"


def interval(figure: Mapping[str, float] | None, percent: bool = True) -> str:
    """A figure's 95 % interval; one problem has none."""
    if figure is None or figure.get("lower") is None:
        return "-"
    digits = ".2%" if percent else ".4f"
    return f"{figure['lower']:{digits}} to {figure['upper']:{digits}}"


def evaluation_blocks(summary: Mapping[str, Any], worst: int = WORST) -> Iterator[Block]:
    """What `kerncast evaluate` prints."""
    yield from remarks(summary)
    unseen = "training data included" if summary["includes_training_data"] else "not seen in training"
    if not summary.get("training_recorded", True):
        unseen = "seen in training or not"
    yield from figure_blocks(summary, f"refitted, split by {summary['split']}" if summary["split"] else unseen)
    if summary.get("seeds"):
        spans = []
        for name, label in SEEDED:
            values = [line[name] for line in summary["seeds"] if line[name] is not None]
            spans += [f"{label} {min(values):.2%} to {max(values):.2%}"] if values else []
        yield f"refitted with {len(summary['seeds'])} seeds: {', '.join(spans)}"
    if summary.get("tiers"):
        yield from tier_blocks(summary["tiers"])
    if summary.get("off_grid"):
        yield from off_grid_blocks(summary["off_grid"])
    if summary.get("against"):
        yield f"\n{said(summary['against'])}"
    if summary.get("budget"):
        yield from budget_blocks(summary["budget"])
    yield from slice_blocks(summary["slices"])
    yield from rate_blocks(summary["rates"], summary["overall"]["efficiency_mean"] is not None)
    yield from worst_blocks(summary["worst"], worst)
    yield from worst_prediction_blocks(summary["worst_predictions"], worst)


def remarks(summary: Mapping[str, Any], who: str = "the model") -> Iterator[str]:
    """What makes the figures look better than they are, and what was left out, a sentence each; warnings begin with `!`."""
    seen = summary.get("problems_seen_in_training")
    if summary.get("includes_training_data"):
        some = f"{seen:,}" if who == "the model" else "some"
        yield f"! {some} of these problems were trained on: these figures are of the training data"
    elif seen:
        yield f"{seen:,} problems that {who} was trained on were left out"
    if not summary.get("training_recorded", True):
        yield (
            f"! {who} does not record its training problems, so some of these may be among them: judge it on data of your own"
        )
    if found := summary.get("unknown_configs"):
        on = f"on {found['problems']:,} of {found['of_problems']:,} problems"
        alone = found["problems_without_others"]
        only = f"; on {alone:,} of them nothing else worked" if alone else ""
        yield (
            f"! {found['configs']:,} of {found['of_configs']:,} configs are not among those that worked in training "
            f"({on}{only}): `select` never chooses them, and what a model says about them is extrapolated. Train on data that "
            "have them, or leave their rows out (`where`)"
        )
    if found := summary.get("untrained_labels"):
        yield (
            f"! {found['problems']:,} of {found['of_problems']:,} problems have labels that were not in training "
            f"({', '.join(found['parameters'])}): the model refuses to answer for them, and what it says about them here is "
            "extrapolated. Leave their rows out (`where`)"
        )


def figure_blocks(evaluation: Mapping[str, Any], title: str) -> Iterator[Block]:
    """The figures of a model next to those of every baseline."""
    overall, others = evaluation["overall"], evaluation["baselines"]
    # A model may be older than `pooled`.
    problems = f"{counted(overall['n_problems'], 'problem')}{distinct(evaluation.get('pooled'))}"
    choosers = {name: card for name, card in others.items() if card["efficiency_mean"] is not None}
    if overall["efficiency_mean"] is not None:
        columns = ("efficiency", "model", "95 % interval", *choosers)
        lines = [
            (label, value(overall[name]), interval(overall[name]), *(value(card.get(name)) for card in choosers.values()))
            for name, label in CHOOSING.items()
            if name in overall  # a model may be older than a figure
        ]
        yield ""
        yield TextTable(columns, lines, f"efficiency of the choice ({problems}, {title})", columns[1:])
        yield from _noise(evaluation)
        if evaluation.get("not_better"):
            yield f"! {not_better_sentence(evaluation)}"
    impossible = evaluation.get("faster_than_possible")
    if impossible and impossible["rows"]:
        yield f"! {sentence(impossible)}"
    predictors = {name: card for name, card in others.items() if card["mape"] is not None}
    if overall["mape"] is not None:
        columns = ("error of the time", "model", "95 % interval", *predictors)
        lines = []
        for name, label in RUNTIME.items():
            if name not in overall:  # a model may be older than a figure
                continue
            percent = name not in NOT_SHARES
            cells = [value(card.get(name), percent) for card in predictors.values()]
            between = "" if name.startswith("r2") else interval(overall[name], percent)
            lines.append((label, value(overall[name], percent), between, *cells))
        yield ""
        yield TextTable(columns, lines, f"predicted against measured time ({problems})", columns[1:])


def not_better_sentence(evaluation: Mapping[str, Any]) -> str:
    """That a model chooses no better than without one, by how much, and what to do."""
    found = evaluation["not_better"]
    against = [
        f"{SIMPLE_CHOICES[name]} {item['other']:.1%} ({item['ahead']['value'] * 100:+.1f} points, {_points(item['ahead'])})"
        for name, item in found.items()
    ]
    ceiling = evaluation["overall"]["noise_ceiling"]
    noisy = ceiling is not None and evaluation["overall"]["efficiency_mean"]["value"] >= ceiling["value"]
    # A single config needs no model; without one, only more or quieter measurements help.
    cure = "measure with more samples, for the choices are as good as this noise allows" if noisy else (
        "take that config for all problems, or measure more problems" if "best_single" in found
        else "measure more problems, or more samples of each config"
    )  # fmt: skip
    model = next(iter(found.values()))["model"]
    return f"the model chooses no better than without it: {model:.1%}, where {' and '.join(against)}: {cure}"


def _points(ahead: Mapping[str, float | None]) -> str:
    if ahead["lower"] is None or ahead["upper"] is None:
        return "one problem"
    return f"95 % interval {ahead['lower'] * 100:+.1f} to {ahead['upper'] * 100:+.1f}"


def _noise(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    overall = evaluation["overall"]
    ceiling, floor = overall["noise_ceiling"], evaluation.get("noise_floor")
    twice = evaluation.get("problems_measured_twice")
    of = f" ({twice:,} problems measured twice)" if twice else ""
    parts = [f"noise ceiling {value(ceiling)}{of}" if ceiling else UNKNOWN_CEILING]
    if floor is not None:
        parts.append(f"a label's relative standard error {floor:.2%}")
    if overall.get("efficiency_mean_ties"):
        parts.append(f"counting ties within the noise as the best {value(overall['efficiency_mean_ties'])}")
    yield "; ".join(parts)
    curve = evaluation.get("top_k") or []
    if len(curve) > 1:
        yield "measuring the best-scored k: " + ", ".join(f"k={p['k']} {p['efficiency_mean']:.2%}" for p in curve)


def off_grid_blocks(lines: Iterable[Mapping[str, Any]]) -> Iterator[Block]:
    """Kinds of problems held out whole, one line each; with tiers, a line per tier."""
    shown: list[tuple[str, ...]] = []
    for line in lines:
        head: tuple[str, ...] = (line["kind"], line["held_out"], f"{line['n_problems']:,}")
        covered = value(line["coverage_90"])
        for tier in line.get("tiers") or [None]:
            if tier is None:
                shown.append((*head, "", value(line["efficiency_mean"]), value(line["efficiency_p10"]), covered))
                continue
            p10 = "-" if tier["efficiency_p10"] is None else f"{tier['efficiency_p10']:.2%}"
            shown.append((*head, tier["tier"], value(tier["efficiency"]), p10, covered))
            head, covered = ("", "", ""), ""
    columns = ["kind", "held out", "problems", "tier", "efficiency", "P10", "90 % interval covers"]
    if not any(row[3] for row in shown):  # without tiers there is no such column
        columns.pop(3)
        shown = [(*row[:3], *row[4:]) for row in shown]
    if shown:
        yield ""
        yield TextTable(columns, shown, "off the grid: each kind predicted without having seen it", columns[2:])


def unseen_device_blocks(lines: Iterable[Mapping[str, Any]]) -> Iterator[Block]:
    """Devices that were left out, one line each."""
    columns = ["device", "nearest other", "octaves away", "MAPE", "roofline", "90 % interval covers"]
    shown = [
        (
            line["device"], line["nearest"], f"{line['distance']:.2f}", f"{line['mape']:.1%}",
            *("-" if line[name] is None else f"{line[name]:.1%}" for name in ("roofline_mape", "coverage")),
        )
        for line in lines
    ]  # fmt: skip
    if shown:
        yield ""
        yield TextTable(columns, shown, "unseen devices: each predicted by a model of the others", columns[2:])


def beside_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    """Hard mining or a warm start compared with the plain way, on the same problems."""
    plain = evaluation.get("without_hard_mining")
    if plain and plain["efficiency_mean"] is not None:
        mined = evaluation["overall"]
        yield (
            f"\nhard mining: mean {value(mined['efficiency_mean'])}, P10 {value(mined['efficiency_p10'])}; without it "
            f"{value(plain['efficiency_mean'])}, {value(plain['efficiency_p10'])}"
        )
    pair = evaluation.get("warm_start")
    if pair:
        name, label = ("efficiency_mean", "mean efficiency") if pair["base"]["efficiency_mean"] else ("mape", "MAPE")
        yield (
            f"\nwarm start, on {pair['base']['n_problems']:,} problems held out: {label} {value(pair['base'][name])} before, "
            f"{value(pair['continued'][name])} after"
            + (" (the base was trained on these problems)" if pair["hold_out_seen_by_base"] else "")
        )


def slice_blocks(slices: list[dict[str, Any]]) -> Iterator[Block]:
    """Parts of the data, one line each: by problem, then by config value, the best next to what was chosen."""

    def share(number: float | None) -> str:
        return "-" if number is None else f"{number:.2%}"

    def figures(line: Mapping[str, Any]) -> tuple[str, ...]:
        shares = (share(line[f"efficiency_{name}"]) for name in ("mean", "p50", "p10", "min"))
        return *shares, f"{line['n_rows']:,}", share(line["mape"])

    common = ("mean", "P50", "P10", "worst", "rows", "MAPE")
    parts = [line for line in slices if line["n_best"] is None]
    if parts:
        columns: tuple[str, ...] = ("by", "value", "problems", *common)
        lines: list[tuple[str, ...]] = [
            (line["by"], line["value"], f"{line['n_problems']:,}", *figures(line)) for line in parts
        ]
        yield ""
        yield TextTable(columns, lines, "by part of the problems", columns[2:])
    chosen = [line for line in slices if line["n_best"] is not None]
    if chosen:
        columns = ("config", "value", "best", "chosen", "both", "mean where best", *common)
        lines = [
            (line["by"], line["value"], f"{line['n_best']:,}", f"{line['n_problems']:,}", f"{line['n_agreed']:,}",
             share(line["efficiency_mean_where_best"]), *figures(line))
            for line in chosen
        ]  # fmt: skip
        yield ""
        yield TextTable(columns, lines, "by config value: on how many problems it is best, and chosen", columns[2:])


def worst_blocks(worst: list[dict[str, Any]], count: int) -> Iterator[Block]:
    """The worst choices, each with the chosen and the best config."""
    if not worst or not count:
        return
    if all(w["configs"] == 1 for w in worst):  # nothing to choose: the worst predictions say it all
        return
    rated = _rated(worst[:count], "best_")
    of_best = [f"{said} of the best" for said in ("time", *rated)]
    placed = ("device",) if any(w.get("device") for w in worst[:count]) else ()
    columns = ("efficiency", "problem", *placed, "chosen", "time", *rated, "best", *of_best)
    lines = [
        (f"{w['efficiency']:.1%}", assignments(w["problem"]), *(w[name] for name in placed), assignments(w["chosen"]),
         duration(w["chosen_ns"]),
         *(three_digits(w[f"chosen_{rate}"]) for rate in rated.values()), assignments(w["best"]), duration(w["best_ns"]),
         *(three_digits(w[f"best_{rate}"]) for rate in rated.values()))
        for w in worst[:count]
    ]  # fmt: skip
    yield ""
    right = [name for name in columns if name not in ("problem", "device", "chosen", "best")]
    yield TextTable(columns, lines, f"the worst {len(lines)} choices", right)


def worst_prediction_blocks(worst: list[dict[str, Any]], count: int) -> Iterator[Block]:
    """The rows whose predicted time is furthest from the measured one."""
    if not worst or not count:
        return
    shown = worst[:count]
    rated = _rated(shown)
    texts = ["problem", *(name for name in ("config", "device") if any(w.get(name) for w in shown))]
    columns = ("predicted/measured", *texts, "measured", *rated, "predicted")
    lines = [
        (f"{w['ratio']:.3g}", *(w[name] if name == "device" else assignments(w[name]) for name in texts),
         duration(w["measured_ns"]), *(three_digits(w[rate]) for rate in rated.values()), duration(w["predicted_ns"]))
        for w in shown
    ]  # fmt: skip
    yield ""
    right = [name for name in columns if name not in texts]
    yield TextTable(columns, lines, f"the worst {len(lines)} predictions", right)


def _rated(lines: Iterable[Mapping[str, Any]], prefix: str = "") -> dict[str, str]:
    """The rates that are known in some of the lines: what a column is called, and its name."""
    told = list(lines)
    return {said: name for name, said in RATE_WORDS.items() if any(line[f"{prefix}{name}"] is not None for line in told)}


def rate_blocks(rates: Mapping[str, Any], choosing: bool) -> Iterator[Block]:
    """How fast the choices are in TFLOPS and GB/s, next to the best ones, where the op's work is known."""
    columns = ("rate", "P10", "P50", "highest")
    sides = {"chosen": "of the choice", "best": "of the best"} if choosing else {"best": "measured"}
    lines = [
        (f"{said} {words}", *(three_digits(found[side][name]) for name in ("p10", "p50", "max")))
        for name, said in RATE_WORDS.items() if (found := rates[name]) is not None
        for side, words in sides.items()
    ]  # fmt: skip
    if lines:
        yield ""
        yield TextTable(columns, lines, "rates over problems, from the op's own arithmetic and bytes", columns[1:])


def tier_blocks(tiers: list[dict[str, Any]]) -> Iterator[Block]:
    """The figures of the tiers of `kerncast select`, each on the problems that it answers itself."""
    columns = ("tier", "efficiency", "95 % interval", "n", "loses to full", "answers itself", "p50", "p99", "bytes")
    lines = []
    for item in tiers:
        loses = "-" if item["loses_to_full"] is None else f"{item['loses_to_full']:.2%}"
        itself, quick, slow = f"{item['answers_itself']:.0%}", duration(item["p50_us"] * 1e3), duration(item["p99_us"] * 1e3)
        got, count = item["efficiency"], f"{item['n_problems']:,}"
        lines.append((item["tier"], value(got), interval(got), count, loses, itself, quick, slow, f"{item['bytes']:,}"))
    yield ""
    yield TextTable(columns, lines, "tiers of `kerncast select`", columns[1:])
    left_out = max(item["not_tried"] for item in tiers)
    if left_out:
        yield f"up to {left_out:,} problems are left out of a line: its config was not measured on them"
    if any(item["efficiency"] is None and item["not_tried"] for item in tiers):
        yield (
            "a tier without an efficiency mostly chose configs that were not measured on the problem: measure every config on "
            "every problem (`configs=portfolio:…`) to judge it"
        )


def budget_blocks(budget: Mapping[str, Any]) -> Iterator[Block]:
    """How much must be measured, three ways."""
    yield ""
    columns = ("problems", "vectors", "efficiency", "95 % interval", "P10")
    lines = [(f"{p['problems']:,}", *_budget_cells(p)) for p in budget["problems"]]
    yield TextTable(columns, lines, "efficiency on other problems, by number of problems measured", columns)
    columns = ("configs per problem", "vectors", "efficiency", "95 % interval", "P10")
    lines = [(f"{p['share']:.0%}", *_budget_cells(p)) for p in budget["configs"]]
    yield ""
    yield TextTable(columns, lines, "by share of each problem's configs measured", columns)
    how = ("vectors", "chosen at random", "chosen actively")
    grown = [(f"{p['vectors']:,}", f"{p['random']:.2%}", f"{p['active']:.2%}") for p in budget["active"]]
    yield ""
    yield TextTable(how, grown, "by how the vectors are chosen", how)


def _budget_cells(point: Mapping[str, Any]) -> tuple[str, ...]:
    between = f"{point['lower']:.2%} to {point['upper']:.2%}"
    return f"{point['vectors']:,}", f"{point['efficiency_mean']:.2%}", between, f"{point['efficiency_p10']:.2%}"


def verdict_blocks(verdict: str, reasons: Iterable[str], summary: Mapping[str, Any]) -> Iterator[Block]:
    """What `kerncast compare` prints."""
    yield from remarks(summary, "a model")
    old, new = summary["old"], summary["new"]
    columns = (str(summary["measure"]), "old", "new", "difference")
    lines = [(name, f"{old[name]:.2%}", f"{new[name]:.2%}", f"{new[name] - old[name]:+.2%}") for name in old]
    yield TextTable(columns, lines, f"{counted(summary['n_problems'], 'problem')}{distinct(summary['pooled'])}", columns[1:])
    same = f"; the same choice on {summary['agreement']:.1%}" if "agreement" in summary else ""
    yield (
        f"improved {summary['improved']:,}, same {summary['same']:,}, degraded {summary['degraded']:,}; worst drop "
        f"{summary['worst_drop']:.2%}{same}"
    )
    if "tier" in summary:
        shares = " and ".join(f"{share:.0%} ({side})" for side, share in summary["answers_itself"].items())
        told = f"what the {summary['tier']} tier would run; it answers {shares} itself, the next tier the others"
        if summary["not_tried"]:
            told += f"; {summary['not_tried']:,} problems are left out: a chosen config was not measured on them"
        yield told
    yield "\n" + printable(f"{verdict}: {'; '.join(reasons)}")
