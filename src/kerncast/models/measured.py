"""The training data of a model: what it keeps of them when it is written, and what they say of configs and problems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Int
from kerncast.data.schema import LABEL
from kerncast.errors import InvalidValue
from kerncast.learning import assess
from kerncast.learning.table import Table
from kerncast.learning.trials import Trials
from kerncast.models.manifest import Fact, Range

if TYPE_CHECKING:
    from kerncast.models.model import Model

NUMBER = "__number"


@dataclass(frozen=True)
class KernelNames:
    """The names of a model's candidates, by their numbers."""

    by: tuple[str, ...]
    """The problem parameters that decide, besides the config, what a kernel is called."""
    names: Mapping[tuple[Any, ...], tuple[str | None, ...]]
    """For each combination of their values: a name for each candidate, or None."""

    def of(self, candidate: int, problem: Mapping[str, Any]) -> str | None:
        """The name of a candidate on a problem; None if it has none."""
        known = self.names.get(tuple(problem.get(name) for name in self.by))
        return None if known is None else known[candidate]

    def of_many(self, candidates: Sequence[int], by: Sequence[Sequence[Any]]) -> list[str | None]:
        """The names of candidates on problems, of which `by` has the deciding parameters; a negative number has no name."""
        keys = zip(*by, strict=True) if by else iter([()] * len(candidates))
        none = (None,) * (1 + max(candidates, default=0))
        return [None if at < 0 else self.names.get(key, none)[at] for at, key in zip(candidates, keys, strict=True)]

    @cached_property
    def candidates(self) -> dict[str, tuple[int, ...]]:
        """The candidates that each name stands for: mostly one."""
        found: dict[str, dict[int, None]] = {}
        for names in self.names.values():
            for candidate, name in enumerate(names):
                if name is not None:
                    found.setdefault(name, {})[candidate] = None
        return {name: tuple(rows) for name, rows in found.items()}

    def all_of(self, candidate: int) -> list[str]:
        """All names of a candidate."""
        return list(dict.fromkeys(name for names in self.names.values() if (name := names[candidate]) is not None))


def labels_of(table: pl.DataFrame, candidates: pl.DataFrame) -> KernelNames:
    """The names of candidates, from a table of names."""
    configs = [name for name in table.columns if name.startswith("config.")]
    by = [name for name in table.columns if name.startswith("problem.")]
    numbered = candidates.select(configs).with_row_index(NUMBER)
    joined = table.join(numbered, on=configs, how="inner", nulls_equal=True, maintain_order="left")
    found: dict[tuple[Any, ...], list[str | None]] = {}
    for row in joined.select(*by, NUMBER, LABEL).iter_rows():
        *key, number, label = row
        found.setdefault(tuple(key), [None] * candidates.height)[number] = label
    return KernelNames(tuple(name.removeprefix("problem.") for name in by), {key: tuple(names) for key, names in found.items()})


def natural(label: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do: digits by their value, so `kernel_9` is before `kernel_10`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", label)
    # By length, then as text: Python refuses to read numbers of thousands of digits.
    digits = (part.lstrip("0") if part[0] in "0123456789" else None for part in parts)
    return [(1, 0, part) if number is None else (0, len(number), number) for part, number in zip(parts, digits, strict=True)]


def in_order_of_labels(candidates: pl.DataFrame, table: pl.DataFrame | None) -> pl.DataFrame:
    """Candidates in the order of their first names, if all of them have one: then their numbers outlive a training."""
    if table is None:
        return candidates
    labels = labels_of(table, candidates)
    first = [min(map(natural, labels.all_of(number)), default=None) for number in range(candidates.height)]
    known = [key for key in first if key is not None]
    if len(known) < len(first):
        return candidates
    return candidates[sorted(range(len(known)), key=lambda number: (known[number], number))]


@dataclass(frozen=True)
class Measured:
    """Every config that was tried on some problems; configs and problems are numbered by their rows here."""

    family: Family
    trials: Trials
    problems: pl.DataFrame
    """`problem.*`, one row per problem number."""
    configs: pl.DataFrame
    """`config.*`, one row per config number."""
    group: Ints
    """By problem: its group, which folds keep together."""
    score: Floats | None = None
    """By row of the trials: the score of a model that had not seen the problem (low is chosen); None: unknown."""
    predicted_ns: Floats | None = None
    """By row of the trials: the time that this model predicted."""
    labels: KernelNames | None = None
    """The names of the configs, by their numbers; None: the data name no kernels."""

    @cached_property
    def shares(self) -> Floats:
        """[problem, config]: best time over own time; 0 where it failed, NaN where it was not tried."""
        found = np.full((self.problems.height, self.configs.height), np.nan)
        found[self.trials.problem, self.trials.config] = self.trials.share
        return found

    @cached_property
    def solvable(self) -> Ints:
        """The problems on which something worked: on the others there is nothing to choose."""
        return np.asarray(self.trials.problems[self.trials.solvable])


def measured_by_model(model: Model, device: str | None = None) -> Measured:
    """The training data of a model, of one of its devices or of all; configs are numbered by the rows of `model.candidates`."""
    frame = model.out_of_fold
    if frame is None or not model.candidates.height:
        raise InvalidValue(
            f"{model.path} does not say what it was trained on (no predictions.parquet): train it again with `kerncast train`"
        )
    if device is not None:
        frame = frame.filter(pl.col("device") == device)
    columns = [name for name in frame.columns if name.startswith("config.")]
    numbered = model.candidates.select(columns).with_row_index(NUMBER)
    if columns:
        frame = frame.join(numbered, on=columns, how="inner", nulls_equal=True, maintain_order="left")
    else:  # a family with nothing to choose
        frame = frame.with_columns(pl.lit(0).alias(NUMBER))
    keys = [name for name in frame.columns if name.startswith("problem.")]
    # Rows are sorted by device, then problem.
    number = frame.select(pl.struct(*keys, "device").rle_id().cast(pl.Int64)).to_series().to_numpy()
    time_ns = frame["measured_ns"].fill_null(float("inf")).to_numpy()
    noise = frame["noise"].fill_null(float("nan")).to_numpy()
    unknown = np.full(len(number), np.nan)
    config = frame[NUMBER].cast(pl.Int64).to_numpy()
    _, first = np.unique(number, return_index=True)
    problems = frame.select(keys)[first]
    return Measured(
        model.family,
        Trials(number, config, time_ns, noise, unknown, unknown),
        problems,
        numbered.drop(NUMBER),
        _groups(problems, model.family),
        frame["score"].to_numpy() if model.evaluated else None,
        frame["time_ns"].to_numpy() if model.evaluated else None,
        model.labels,
    )


def measured_in_table(table: Table) -> Measured:
    """The measurements of a dataset, configs numbered as in `table.configs`."""
    _, problem = np.unique(table.problem, return_inverse=True)
    _, config = np.unique(table.config, return_inverse=True)
    trials = Trials(problem, config, table.trials.time_ns, table.noise, table.half_a, table.half_b)
    labels = None if table.labels is None else labels_of(table.labels, table.configs)
    return Measured(table.family, trials, table.problems, table.configs, _groups(table.problems, table.family), labels=labels)


def _groups(problems: pl.DataFrame, family: Family) -> Ints:
    keys = [f"problem.{name}" for name in family.op.split_group]
    return problems.select(pl.struct(keys).rank("dense").cast(pl.Int64)).to_series().to_numpy()


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
