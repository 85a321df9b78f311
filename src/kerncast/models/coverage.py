"""What a model covers: the groups and ranges it was trained on and the configs that worked, a warm start's base included."""

from __future__ import annotations

import polars as pl

from kerncast.models.manifest import Range
from kerncast.models.model import Model
from kerncast.parameters import Bool, Categorical
from kerncast.tables import assess
from kerncast.tables.table import Table

# How many configs of a greedy portfolio are kept.
MOST_PLACES = 64


def seen_groups(table: Table, base: Model | None) -> pl.DataFrame:
    """The groups that were trained on, the base's included."""
    columns = [f"problem.{name}" for name in table.family.op.split_group]
    groups = table.rows.frame.select(columns).unique()
    if base is not None:
        groups = pl.concat([groups, base.seen]).unique()
    return groups.sort(columns)


def hull(table: Table, base: Model | None) -> dict[str, Range]:
    """The values of each problem parameter that were trained on, the base's included."""
    own = _own_hull(table)
    if base is None:
        return own
    known = base.manifest.hull
    return {name: _joined(known.get(name), own.get(name)) for name in table.family.problem.parameters if name in {*own, *known}}


def _own_hull(table: Table) -> dict[str, Range]:
    found = {}
    for name, parameter in table.family.problem.parameters.items():
        values = table.rows.frame[f"problem.{name}"].drop_nulls()
        if isinstance(parameter, Categorical | Bool):
            found[name] = Range(labels=tuple(values.unique().sort()))
        elif len(values):
            low, high = values.min(), values.max()
            assert isinstance(low, int)
            assert isinstance(high, int)
            found[name] = Range(low=low, high=high)
    return found


def _joined(one: Range | None, other: Range | None) -> Range:
    known = [item for item in (one, other) if item is not None]
    lows, highs = ([getattr(item, end) for item in known if getattr(item, end) is not None] for end in ("low", "high"))
    labels = sorted({label for item in known for label in item.labels})
    return Range(min(lows, default=None), max(highs, default=None), tuple(labels))


def candidates(table: Table, base: Model | None) -> pl.DataFrame:
    """Every config that worked at least once, for the base or in these data: answers are chosen from them."""
    own = assess.attempts(table, MOST_PLACES)
    if base is None or not base.candidates.height:
        return own.filter(pl.col("ok") > 0)
    # A share is a mean over problems, so it is weighted by the number of groups behind it.
    groups = table.rows.frame.select(base.seen.columns).n_unique()
    total = groups + base.seen.height
    parts = [
        frame.with_columns(share=pl.col("share") * (weight / total), portfolio_place=2 * pl.col("portfolio_place") + later)
        for later, (frame, weight) in enumerate([(own, groups), (base.candidates.select(own.columns), base.seen.height)])
    ]
    columns = [name for name in own.columns if name.startswith("config.")]
    figures = [pl.col("ok", "failed", "share").sum(), pl.col("portfolio_place").min()]
    both = pl.concat(parts, how="vertical_relaxed")
    joined = both.group_by(columns).agg(figures).sort(columns, nulls_last=True) if columns else both.select(figures)
    # The two portfolios take turns, the new one first.
    place = pl.col("portfolio_place").rank("dense").cast(pl.Int64) - 1
    return joined.filter(pl.col("ok") > 0).with_columns(portfolio_place=pl.when(place < MOST_PLACES).then(place))
