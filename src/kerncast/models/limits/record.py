"""What a model covers: the groups and ranges it was trained on and the configs that worked, a warm start's base included."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.parameters import Bool, Categorical, Int
from kerncast.learning.tables import assess
from kerncast.learning.tables.table import Table
from kerncast.models.manifest import Fact, Range
from kerncast.models.model import Model

# How many configs of a greedy portfolio are kept.
MOST_PLACES = 64
# The powers of two that sizes are tried for, the largest first: wider loads do not exist. What fewer values have in common, or
# what random values would have in common with more than this probability, is no fact.
POWERS = (16, 8, 4, 2)
FEWEST_VALUES, CHANCE = 20, 1e-6
# The `fold` of a prediction that an earlier model made, in the predictions of a warm start.
CARRIED = -1


def seen_groups(table: Table, base: Model | None) -> pl.DataFrame:
    """The groups that were trained on, the base's included."""
    columns = [f"problem.{name}" for name in table.family.op.split_group]
    groups = table.rows.frame.select(columns).unique()
    if base is not None:
        groups = pl.concat([groups, base.seen]).unique()
    return groups.sort(columns)


def conditions(table: Table, base: Model | None) -> dict[str, tuple[str, ...]]:
    """The backends and cache states of the data, the base's included."""
    known = {} if base is None else base.manifest.conditions
    return {
        name: tuple(sorted({*table.conditions.get(name, ()), *known.get(name, ())}))
        for name in sorted({*table.conditions, *known})
    }


def with_base(predictions: pl.DataFrame, table: Table, base: Model | None) -> pl.DataFrame:
    """The out-of-fold predictions of a training, with everything else that was measured: tiers are built from all of it.

    The vectors of the base keep the predictions that the base made out of fold. Those that a warm start was continued on, but
    not judged by, have the base's prediction, which was made before it saw them. Their `fold` is `CARRIED`.
    """
    if base is None or base.out_of_fold is None:
        return predictions
    keys = ["device", *table.rows.frame.columns]
    measured = table.rows.frame.with_columns(
        device=table.device_names,
        measured_ns=pl.Series(table.time_ns).fill_nan(None),
        noise=pl.Series(table.noise).fill_nan(None),
    )
    # A vector that was measured again has its new time.
    before = base.out_of_fold.join(measured.select(keys), on=keys, how="anti", nulls_equal=True)
    again = base.out_of_fold.drop("measured_ns", "noise").join(measured, on=keys, how="inner", nulls_equal=True)
    parts = [predictions, before, again]
    if predictions.height < measured.height:
        said = base.rank_rows(table.rows)
        parts.append(measured.with_columns(time_ns=pl.Series(said.time_ns), score=pl.Series(said.score)))
    carried = [part.with_columns(fold=pl.lit(CARRIED, pl.Int64)) for part in parts[1:]]
    both = pl.concat([predictions, *carried], how="diagonal_relaxed").select(predictions.columns)
    return both.unique(keys, keep="first", maintain_order=True).sort(keys, nulls_last=True)


def hull(table: Table, base: Model | None) -> dict[str, Range]:
    """The values of each problem parameter that were trained on, the base's included."""
    own = _own_hull(table)
    if base is None:
        return own
    known = base.manifest.hull
    if not base.recorded:  # what it was trained on is not known, so no value is outside of it
        own = {name: own[name] for name in own if name in known}
    return {name: _joined(known.get(name), own.get(name)) for name in table.family.problem.parameters if name in {*own, *known}}


def _own_hull(table: Table) -> dict[str, Range]:
    found = {}
    for name, parameter in table.family.problem.parameters.items():
        values = table.rows.frame[f"problem.{name}"].drop_nulls()
        if not len(values) and parameter.optional:
            continue
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


def device_software(table: Table, base: Model | None) -> dict[str, tuple[str, ...]]:
    """The software that was measured on each device, the base's included; empty for one device, and where all have the same."""
    found = {name: set(texts) for name, texts in table.device_software.items()}
    if base is not None:
        for record in base.manifest.devices:
            found.setdefault(record.name, set()).update(base.manifest.software_on(record.name))
    if len({frozenset(own) for own in found.values()}) < 2:
        return {}
    return {name: tuple(sorted(own)) for name, own in sorted(found.items())}


def device_dtypes(table: Table, base: Model | None) -> dict[str, tuple[str, ...]]:
    """The dtypes that were measured on each device, the base's included; empty for one device, and where all have the same."""
    names = [device.name for device in table.devices]
    if len(names) < 2 or "problem.dtype" not in table.rows.frame.columns:
        return {}
    dtypes = table.rows.frame["problem.dtype"]
    found = {name: set(dtypes.filter(pl.Series(table.device == number)).unique()) for number, name in enumerate(names)}
    if base is not None:
        for record in base.manifest.devices:
            found.setdefault(record.name, set()).update(base.manifest.dtypes_on(record.name))
    if len({frozenset(own) for own in found.values()}) == 1:
        return {}
    return {name: tuple(sorted(own)) for name, own in sorted(found.items())}


def facts(table: Table, base: Model | None) -> dict[str, Fact]:
    """By size: what all measured values have in common though the op allows others, the base's values included."""
    found: dict[str, Fact] = {}
    if base is not None and not base.recorded:
        return found
    for name, parameter in table.family.problem.parameters.items():
        if not isinstance(parameter, Int):
            continue
        values = table.rows.frame[f"problem.{name}"].drop_nulls().unique().sort().to_numpy()
        if base is None or name not in base.manifest.hull:
            fact = _in_common(values, parameter.step)
        else:
            fact = _still_in_common(values, base.manifest.facts.get(name))
        if fact is not None:
            found[name] = fact
    return found


def _in_common(values: Ints, step: int) -> Fact | None:
    """The largest power of two that all values are multiples of, unless that may be chance; or that all are odd."""
    if len(values) < FEWEST_VALUES:
        return None
    for power in POWERS:
        rest, free = int(values[0]) % power, power // math.gcd(power, step)
        by_chance = float(free) ** -(len(values) - 1)
        if free > 1 and by_chance < CHANCE and (rest == 0 or power == 2) and np.all(values % power == rest):
            return Fact(power, rest)
    return None


def _still_in_common(values: Ints, known: Fact | None) -> Fact | None:
    """What of a known fact is true of new values too."""
    for power in POWERS if known is not None else ():
        assert known is not None
        rest = known.rest % power
        if power <= known.step and np.all(values % power == rest):
            return Fact(power, rest)
    return None


def candidates(table: Table, base: Model | None) -> pl.DataFrame:
    """Every config that worked at least once, for the base or in these data: answers are chosen from them."""
    own = assess.attempts(table, MOST_PLACES)
    if base is None or not base.candidates.height:
        return own.filter(pl.col("ok") > 0)
    # A share is a mean over problems, so it is weighted by the number of groups behind it.
    groups = table.rows.frame.select(f"problem.{name}" for name in table.family.op.split_group).n_unique()
    before = base.manifest.data.groups if base.slim else base.seen.height
    total = groups + before
    parts = [
        frame.with_columns(share=pl.col("share") * (weight / total), portfolio_place=2 * pl.col("portfolio_place") + later)
        for later, (frame, weight) in enumerate([(own, groups), (base.candidates.select(own.columns), before)])
    ]
    columns = [name for name in own.columns if name.startswith("config.")]
    figures = [pl.col("ok", "failed", "share").sum(), pl.col("portfolio_place").min()]
    both = pl.concat(parts, how="vertical_relaxed")
    joined = both.group_by(columns).agg(figures).sort(columns, nulls_last=True) if columns else both.select(figures)
    # The two portfolios take turns, the new one first.
    place = pl.col("portfolio_place").rank("dense").cast(pl.Int64) - 1
    return joined.filter(pl.col("ok") > 0).with_columns(portfolio_place=pl.when(place < MOST_PLACES).then(place))
