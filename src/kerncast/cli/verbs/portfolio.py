"""`kerncast portfolio`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.stored import MODEL_OR_DATA, store_of_model
from kerncast.cli.views.output import assignments, json_option, print_json, table, where_option, working
from kerncast.writing.shell import word

if TYPE_CHECKING:
    from kerncast.selecting.tiers.portfolio import CurvePoint, PortfolioChoice
    from kerncast.selecting.tiers.portfolio_of import Portfolio

# Characters of the longest bar. Bars are logarithmic, because losses span four powers of ten.
WIDEST = 24
LEAST_SHOWN = 1e-4
EIGHTHS = " ▏▎▍▌▋▊▉█"
# Every size up to this one has a line, then every fourth.
EVERY_SIZE = 12


@click.command("portfolio")
@click.argument("source", metavar="MODEL|DATASET", type=MODEL_OR_DATA, shell_complete=completing.dataset_folders)
@store_of_model
@click.option("--loss", default=0.002, show_default=True, type=click.FloatRange(0, 1, max_open=True), metavar="SHARE",
              help="Allowed loss of the portfolio's best config, on average over held-out problems.")  # fmt: skip
@click.option("--max", default=64, show_default=True, type=click.IntRange(min=1), metavar="N", help="Maximum configs.")
@click.option(
    "--family", metavar="FAMILY", shell_complete=completing.families, help="Which family, when a dataset holds several."
)
@where_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Write the configs as a JSON list, for `--configs portfolio:FILE` of sweep and collect.")  # fmt: skip
@click.option("--build-list", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the kernels' names as the data have them, one per line: what a build has to contain.")  # fmt: skip
@json_option
def command(
    source: Path,
    loss: float,
    max: int,
    family: str | None,
    where: tuple[str, ...],
    out: Path | None,
    build_list: Path | None,
    as_json: bool,
) -> None:
    """Show how few configs are enough: which kernels need not be built or shipped at all.

    Sets of one, two, three … configs are chosen on some folds of problems and scored on the others. The loss says
    how much slower the best config of the set is than the best of all; a problem on which no config of the set
    works counts as a loss of 100 %.

    \b
    kerncast portfolio model
    kerncast portfolio quickstart/gemm_cpu --loss 0.01 --max 16
    kerncast portfolio model --build-list kernels.txt
    kerncast portfolio model --out keep.json && kerncast sweep gemm/triton --configs portfolio:keep.json ...
    """
    from kerncast.selecting.selector import Selector

    with working("choosing"):
        portfolio = Selector.portfolio(source, loss=loss, max=max, family=family, where=where, out=out, build_list=build_list)
    if as_json:
        print_json(portfolio.as_json())
        return
    _show(portfolio)
    if out is not None:
        family, configs = word(portfolio.measured.family.id), word(f"portfolio:{out}")
        echo("", f"written to {out}. Next: kerncast sweep {family} --configs {configs} …")


def _show(portfolio: Portfolio) -> None:
    measured, found, loss = portfolio.measured, portfolio.found, portfolio.loss
    echo(f"{measured.family.id}: {found.problems:,} problems, {measured.configs.height:,} configs")
    held = f"held out, {found.folds} folds" if found.folds else "one group of problems: nothing could be held out"
    columns = ("configs", "loss", "", "in training", "P10", "worst")
    lines = [
        (point.size, f"{point.loss:.3%}", bar(point.loss), f"{point.training_loss:.3%}", f"{point.efficiency_p10:.2%}",
         f"{point.efficiency_min:.2%}")
        for point in _thinned(found.curve)
    ]  # fmt: skip
    echo()
    table(columns, lines, f"loss of the best of N configs ({held}; bars are logarithmic)",
          right=("configs", "loss", "in training", "P10", "worst"))  # fmt: skip
    echo()
    echo(_verdict(found, measured.configs.height, loss))
    if portfolio.caution:
        echo(f"! {portfolio.caution}")
    _show_configs(portfolio)


def _verdict(found: PortfolioChoice, configs: int, loss: float) -> str:
    count, last = len(found.configs), found.curve[-1]
    extra = count - last.size
    more = f" ({extra} of them for problems on which none of the others works)" if extra else ""
    bare = f"; on {found.uncovered:,} problems none of them works: allow more with --max" if found.uncovered else ""
    if found.reached:
        rest = f"{loss:.2%} is allowed: the others need not be built"
        return f"{count} of {configs:,} configs{more} lose {last.loss:.2%}, {rest}{bare}"
    return (
        f"{count} configs{more} lose {last.loss:.2%} on held-out problems, more than {loss:.2%}: allow more "
        f"with --max, or measure more problems ({found.problems:,} so far){bare}"
    )


def _show_configs(portfolio: Portfolio) -> None:
    import numpy as np

    measured, found = portfolio.measured, portfolio.found

    shares = np.nan_to_num(measured.shares[measured.solvable][:, list(found.configs)])
    best = np.bincount(shares.argmax(axis=1), minlength=len(found.configs))
    covered = np.maximum.accumulate(shares, axis=1).mean(axis=0)
    named = measured.labels is not None
    lines = [
        (place + 1, assignments(portfolio.config(number)), f"{1 - covered[place]:.3%}", f"{best[place]:,}",
         *([_names(portfolio.labels[place])] if named else []))
        for place, number in enumerate(found.configs)
    ]  # fmt: skip
    echo()
    columns = ("place", "config", "loss with those above", "best on", *(["label"] if named else []))
    table(columns, lines, "the portfolio, the config that adds most first", right=("place", columns[2], columns[3]))


def _names(labels: list[str]) -> str:
    """The first name, and how many more there are."""
    return "-" if not labels else labels[0] + (f" (+{len(labels) - 1})" if len(labels) > 1 else "")


def bar(loss: float) -> str:
    """A loss as a bar in eighths of a character: empty at 0.01 %, full at 100 %."""
    from math import log10

    length = 0.0 if loss <= LEAST_SHOWN else 1.0 - log10(loss) / log10(LEAST_SHOWN)
    eighths = round(length * WIDEST * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip()


def _thinned(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    last = curve[-1].size
    return [point for point in curve if point.size <= EVERY_SIZE or point.size % 4 == 0 or point.size == last]
