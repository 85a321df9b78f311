"""How figures are printed: the model beside the baselines, each with its interval."""

from __future__ import annotations

from typing import Any

import click

from kerncast.cli.views.output import assignments, duration, table

CHOOSING = (
    ("efficiency_mean", "mean"), ("efficiency_p10", "P10"), ("efficiency_p1", "P1"), ("efficiency_min", "worst"),
    ("efficiency_gmean", "geometric mean"), ("top1", "best chosen"), ("regret_mean", "regret, mean"),
)  # fmt: skip
RUNTIME = (
    ("mape", "MAPE"), ("median_ape", "median"), ("ape_p95", "P95"), ("rmsre", "RMSRE"), ("r2", "R2"), ("r2_log", "R2 log"),
    ("coverage_90", "90 % interval covers"),
)  # fmt: skip


def value(figure: dict[str, float] | None, percent: bool = True) -> str:
    """A figure without its interval."""
    if figure is None:
        return "-"
    return f"{figure['value']:.2%}" if percent else f"{figure['value']:.4f}"


def interval(figure: dict[str, float] | None) -> str:
    """A figure's 95 % interval; one problem has none."""
    if figure is None or figure.get("lower") is None:
        return "-"
    return f"{figure['lower']:.2%} to {figure['upper']:.2%}"


def show_figures(evaluation: dict[str, Any], title: str) -> None:
    """What a model gets, with every baseline beside it."""
    overall, others = evaluation["overall"], evaluation["baselines"]
    choosers = {name: card for name, card in others.items() if card["efficiency_mean"] is not None}
    if overall["efficiency_mean"] is not None:
        columns = ("efficiency", "model", "95 % interval", *choosers)
        lines = [
            (label, value(overall[name]), interval(overall[name]), *(value(card.get(name)) for card in choosers.values()))
            for name, label in CHOOSING
            if name in overall  # a model may have been written before there was a figure
        ]
        click.echo()
        table(columns, lines, f"efficiency of the choice ({overall['n_problems']:,} problems, {title})", right=columns[1:])
        _show_noise(evaluation)
    predictors = {name: card for name, card in others.items() if card["mape"] is not None}
    if overall["mape"] is not None:
        columns = ("error of the time", "model", "95 % interval", *predictors)
        lines = []
        for name, label in RUNTIME:
            whole = not name.startswith("r2")
            cells = [value(card[name], whole) for card in predictors.values()]
            lines.append((label, value(overall[name], whole), interval(overall[name]) if whole else "", *cells))
        click.echo()
        table(columns, lines, f"predicted against measured time ({overall['n_problems']:,} problems)", right=columns[1:])


def _show_noise(evaluation: dict[str, Any]) -> None:
    overall = evaluation["overall"]
    ceiling, floor = overall["noise_ceiling"], evaluation.get("noise_floor")
    parts = [f"noise ceiling {value(ceiling)}" if ceiling else "noise ceiling unknown (nothing was repeated)"]
    if floor is not None:
        parts.append(f"a label's relative standard error {floor:.2%}")
    if overall.get("efficiency_mean_ties"):
        parts.append(f"counting ties within the noise as the best {value(overall['efficiency_mean_ties'])}")
    click.echo("; ".join(parts))
    curve = evaluation.get("top_k") or []
    if len(curve) > 1:
        click.echo("measuring the best-scored k: " + ", ".join(f"k={p['k']} {p['efficiency_mean']:.2%}" for p in curve))


def show_beside(evaluation: dict[str, Any]) -> None:
    """What a special way of training is judged by: the plain way, on the same problems."""
    plain = evaluation.get("without_hard_mining")
    if plain and plain["efficiency_mean"] is not None:
        mined = evaluation["overall"]
        click.echo(
            f"\nhard mining: mean {value(mined['efficiency_mean'])}, P10 {value(mined['efficiency_p10'])}; without it "
            f"{value(plain['efficiency_mean'])}, {value(plain['efficiency_p10'])}"
        )
    pair = evaluation.get("warm_start")
    if pair:
        name, label = ("efficiency_mean", "mean efficiency") if pair["base"]["efficiency_mean"] else ("mape", "MAPE")
        click.echo(
            f"\nwarm start, on {pair['base']['n_problems']:,} problems held out: {label} {value(pair['base'][name])} before, "
            f"{value(pair['continued'][name])} after"
            + (" (the base was trained on these problems)" if pair["hold_out_seen_by_base"] else "")
        )


def show_slices(slices: list[dict[str, Any]]) -> None:
    """Parts of the data, one line each."""
    columns = ("of", "by", "value", "problems", "mean", "P10", "worst", "rows", "MAPE")

    def share(number: float | None) -> str:
        return "-" if number is None else f"{number:.2%}"

    lines = [
        (s["of"], s["by"], s["value"], f"{s['n_problems']:,}", share(s["efficiency_mean"]), share(s["efficiency_p10"]),
         share(s["efficiency_min"]), f"{s['n_rows']:,}", share(s["mape"]))
        for s in slices
    ]  # fmt: skip
    if lines:
        click.echo()
        table(columns, lines, "by part", right=columns[3:])


def show_worst(worst: list[dict[str, Any]], count: int) -> None:
    """The problems that cost most, with what was chosen and what was best."""
    if not worst or not count:
        return
    click.echo()
    if all(w["configs"] == 1 for w in worst):  # nothing to choose: the list is of times
        columns: tuple[str, ...] = ("off by", "problem", "measured", "predicted")
        lines: list[tuple[str, ...]] = [
            (f"{w['predicted_ns'] / w['best_ns'] - 1.0:+.1%}", assignments(w["problem"]), duration(w["best_ns"]),
             duration(w["predicted_ns"]))
            for w in worst[:count]
        ]  # fmt: skip
        table(columns, lines, f"the worst {len(lines)} problems", right=("off by", "measured", "predicted"))
        return
    columns = ("efficiency", "problem", "chosen", "time", "best", "time of the best")
    lines = [
        (f"{w['efficiency']:.1%}", assignments(w["problem"]), assignments(w["chosen"]), duration(w["chosen_ns"]),
         assignments(w["best"]), duration(w["best_ns"]))
        for w in worst[:count]
    ]  # fmt: skip
    table(columns, lines, f"the worst {len(lines)} problems", right=("efficiency", "time", "time of the best"))


def show_tiers(tiers: list[dict[str, Any]]) -> None:
    """What the tiers of `kerncast select` get, each by its own answers."""
    columns = ("tier", "efficiency", "95 % interval", "n", "loses to full", "answers itself", "p50", "p99", "bytes")
    lines = []
    for item in tiers:
        loses = "-" if item["loses_to_full"] is None else f"{item['loses_to_full']:.2%}"
        itself, quick, slow = f"{item['answers_itself']:.0%}", duration(item["p50_us"] * 1e3), duration(item["p99_us"] * 1e3)
        got, count = item["efficiency"], f"{item['n_problems']:,}"
        lines.append((item["tier"], value(got), interval(got), count, loses, itself, quick, slow, f"{item['bytes']:,}"))
    click.echo()
    table(columns, lines, "tiers of `kerncast select`", right=columns[1:])
    left_out = max(item["not_tried"] for item in tiers)
    if left_out:
        click.echo(f"up to {left_out:,} problems are left out of a line: its config was not measured on them")
