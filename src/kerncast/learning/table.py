"""Measurements as a training table: one row per key, repeats folded into a label and its noise, failures kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.core.arrays import Array, Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Expr, Program
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.filters import Condition, SoftwareRows
from kerncast.errors import InvalidValue
from kerncast.learning.feature_rows import Featurizer, Rows, TimedRows, at_rates, joined, rates_again, with_rates
from kerncast.learning.measurements import Folded, ProblemSample, read_measurements, resolved_software, stacked
from kerncast.learning.trials import Trials
from kerncast.library.declared.declaration import refuse_another_draft
from kerncast.library.declared.family_file import SUFFIX, family_named

# A rule is contradicted if at least this many attempts that break it worked, and at least this share of them: a few wrong rows
# in a table do not abolish a rule.
FEWEST_RAN, SHARE_RAN = 20, 0.5


@dataclass(frozen=True)
class BoundRule:
    """A predicate, and the sentence that a caller sees if it does not hold."""

    name: str
    sentence: str
    holds: Expr


@dataclass(frozen=True)
class BrokenRule:
    """The attempts that break one rule, and how many of them worked."""

    rule: BoundRule
    attempts: int
    ran: int
    example: int
    """The first row that worked although it breaks the rule; -1 if there is none."""

    @property
    def contradicted(self) -> bool:
        """Whether the measurements say that the rule does not hold on this device."""
        return self.ran >= FEWEST_RAN and self.ran >= SHARE_RAN * self.attempts


def family_rules(family: Family, device: Device, dtypes: tuple[str, ...], without: Iterable[str] = ()) -> list[BoundRule]:
    """Rules of the family, hardware numbers bound; those that need an unknown number are left to the backend.

    `without` names rules that are left out, because measurements contradict them.
    """
    bound, left_out = device.bindings(family.op.dtype, dtypes or None), set(without)
    found = []
    for constraint in family.config.constraints:
        program = Program({constraint.name: constraint.holds}).bind(bound)
        if constraint.name not in left_out and not any(item.name.startswith("hw.") for item in program.symbols):
            found.append(BoundRule(constraint.name, constraint.sentence, program.outputs[constraint.name]))
    return found


def namespaces(expr: Expr) -> set[str]:
    """What a rule reads: `p` the problem, `c` the config."""
    return {item.name.split(".")[0] for item in Program({"": expr}).symbols}


def problem_rules(rules: list[BoundRule]) -> list[BoundRule]:
    """The rules that the problem alone decides."""
    return [rule for rule in rules if namespaces(rule.holds) == {"p"}]


def config_rules(rules: list[BoundRule]) -> list[BoundRule]:
    """All rules that a config must obey."""
    return [rule for rule in rules if "c" in namespaces(rule.holds)]


def judge_rules(family: Family, device: Device, frame: pl.DataFrame, ok: Flags) -> tuple[list[BrokenRule], Flags]:
    """The rules that some attempts on a device break, and which attempts obey all rules that are not contradicted."""
    dtypes = tuple(sorted(frame["problem.dtype"].drop_nulls().unique())) if "problem.dtype" in frame.columns else ()
    symbols = schema.symbol_columns(family, frame)
    found, allowed = [], np.ones(frame.height, dtype=bool)
    for rule in family_rules(family, device, dtypes):
        program = Program({rule.name: rule.holds})
        if not program.symbols:
            continue
        breaks = program.frame(symbols, trusted=True).to_series().to_numpy() == 0.0
        if not breaks.any():
            continue
        ran = np.flatnonzero(breaks & ok)
        broken = BrokenRule(rule, int(breaks.sum()), len(ran), int(ran[0]) if len(ran) else -1)
        found.append(broken)
        if not broken.contradicted:
            allowed &= ~breaks
    return found, allowed


# Statuses that say nothing about the kernel, because it was never really tried.
NOT_TRIED = ("not_run",)
# Rows that differ in one of these were measured under different conditions: they are pooled only on request.
MIXTURES = {"device": "devices", "backend": "backends", "software": "software versions", "cache": "cache states"}


@dataclass(frozen=True)
class Table:
    """Everything that was tried, described and labelled. Rows are in the order of problem and config."""

    rows: Rows
    devices: tuple[Device, ...]
    software: tuple[str, ...]
    left_out: dict[str, tuple[str, ...]]
    time_ns: Floats
    """NaN where the attempt failed."""
    noise: Floats
    half_a: Floats
    half_b: Floats
    problem: Ints
    group: Ints
    config: Ints
    device: Ints
    weight: Floats
    """The weight of a row's problem; 1 unless hard problems count more."""
    allowed: Flags
    """The rows that obey the family's rules; a rule that the measurements contradict does not count."""
    broken: tuple[BrokenRule, ...]
    """The rules that some of the rows break."""
    digest: str
    labels: pl.DataFrame | None = None
    """What each config is called (see `label_table`); None: the data name no kernels."""
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The backends and cache states that the times are of, where the data say."""
    device_software: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The software of the rows of each device, where they say it."""

    @property
    def family(self) -> Family:
        return self.rows.family

    @property
    def ok(self) -> Flags:
        """The rows that have a time."""
        return np.isfinite(self.time_ns)

    def take(self, index: Array) -> Table:
        """Some of the rows; problems, groups and configs keep their numbers."""
        arrays = ("time_ns", "noise", "half_a", "half_b", "problem", "group", "config", "device", "weight", "allowed")
        return replace(self, rows=self.rows.take(index), **{name: getattr(self, name)[index] for name in arrays})

    def divided(self, seen: Array, judged: Array) -> tuple[Table, Table]:
        """The rows to learn from and those to judge by; rates that a device lacks are estimated from the former alone."""
        parts = self.take(seen), self.take(judged)
        if not any(device.estimated for device in self.devices):
            return parts
        devices = rates_again(parts[0]._timed, self.devices)
        learned, held = (replace(part, devices=devices, rows=at_rates(part.rows, devices)) for part in parts)
        return learned, held

    @property
    def _timed(self) -> TimedRows:
        return TimedRows(self.rows, self.time_ns, self.problem, self.device)

    @property
    def device_names(self) -> pl.Series:
        """The device of each row."""
        return pl.Series("device", [device.name for device in self.devices], dtype=pl.String).gather(self.device)

    def renumbered(self) -> Table:
        """The same rows with problems, groups and configs numbered from 0 without gaps, as `take` may leave them."""
        problem, group, config = (_dense(numbers) for numbers in (self.problem, self.group, self.config))
        return replace(self, problem=problem, group=group, config=config)

    @cached_property
    def trials(self) -> Trials:
        """The measurements alone, for scoring."""
        times = np.where(self.ok, self.time_ns, np.inf)
        return Trials(self.problem, self.config, times, self.noise, self.half_a, self.half_b)

    @cached_property
    def problems(self) -> pl.DataFrame:
        """The distinct problems, in the order of their numbers."""
        return self._distinct("problem.", self.problem)

    @cached_property
    def configs(self) -> pl.DataFrame:
        """The distinct configs, in the order of their numbers."""
        return self._distinct("config.", self.config)

    def placed(self, rows: Ints) -> pl.DataFrame:
        """The problems of some rows, each with its device."""
        return self.rows.frame.select(pl.col("^problem\\..*$"))[rows].with_columns(self.device_names[rows])

    def _distinct(self, prefix: str, numbers: Ints) -> pl.DataFrame:
        columns = [name for name in self.rows.frame.columns if name.startswith(prefix)]
        if not columns:  # a family with nothing to choose
            return pl.DataFrame()
        _, first = np.unique(numbers, return_index=True)
        return self.rows.frame.select(columns)[first]

    @property
    def noise_floor(self) -> float | None:
        """The median relative standard error of a label, where it is known."""
        known = self.noise[self.ok & np.isfinite(self.noise)]
        return float(np.median(known)) if len(known) else None


def pooled(problems: pl.DataFrame) -> dict[str, int] | None:
    """Of problems that are told apart by their device too: how many there are without it, on how many devices."""
    devices = problems["device"].n_unique()
    if devices < 2:
        return None
    return {"problems": problems.select(pl.col("^problem\\..*$")).n_unique(), "devices": devices}


def _dense(numbers: Ints) -> Ints:
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def load_table(
    datasets: Sequence[Dataset],
    family: str | None = None,
    where: Sequence[str] = (),
    pool: bool = False,
    kept: Collection[str] = (),
    progress: Progress = QUIET,
    sample: ProblemSample | None = None,
    estimated: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """The rows of one family from one or several datasets; for `kept`, see `table_of`.

    `progress` is told which devices have no rows of the software that `where` names. With `sample`, not all of very many rows
    are read. `estimated` are rates of devices that another model has estimated already.
    """
    found = _one_family(datasets, family)
    holders = [dataset for dataset in datasets if found.id in {item.id for item in dataset.families}]
    at = ", ".join(str(dataset.path) for dataset in datasets)
    chosen = resolved_software(found, holders, where)
    for note in (note for item in chosen if isinstance(item, SoftwareRows) for note in item.notes):
        progress.say(note)
    if sample is not None:
        chosen = sample.drawn(found, holders, chosen, progress)
    pieces = read_measurements(found, holders, chosen)
    rows = tried_rows(pieces, where, f"{found.id} in {at}", "there is nothing to learn from")
    if not pool:
        refuse_mixtures(rows, MIXTURES, cure=", or train on all of them together with `pool`")
    machines = {name: _machine(name, found, holders, chosen) for name in sorted(rows["device"].unique())}
    machines = {name: replace(device, estimated=(estimated or {}).get(name, {})) for name, device in machines.items()}
    digest = "+".join(sorted(dataset.digest for dataset in holders))
    columns = rows.get_columns()
    del rows
    return table_of(found, Folded.of(found, columns), machines, digest, kept)


def build_table(family: Family, rows: pl.DataFrame, machines: dict[str, Device], digest: str) -> Table:
    """The table of some rows, as a dataset stores them."""
    return table_of(family, Folded.of(family, rows.get_columns()), machines, digest)


def table_of(family: Family, measured: Folded, machines: dict[str, Device], digest: str, kept: Collection[str] = ()) -> Table:
    """Number problems, groups and configs, describe them for a model.

    Features of optional parameters that no row gives are left out; those in `kept` stay. Columns of another system's models
    are computed only if `kept` names them.
    """
    problem_columns = [f"problem.{name}" for name in family.problem.parameters]
    config_columns = [f"config.{name}" for name in family.config.parameters]
    folded = measured.frame
    # In the order of the rows.
    machines = {name: machines[name] for name in sorted(machines)}
    featurizers = {name: Featurizer.reading(family, device, _dtypes(folded, name), kept) for name, device in machines.items()}
    parts = _by_device(folded)
    described = {name: item.describe(folded[parts[name]], yardsticks=True) for name, item in featurizers.items()}
    broken, allowed = _judged(family, machines, folded, parts)
    left_out = {feature: needs for item in featurizers.values() for feature, needs in item.left_out.items()}
    table = Table(
        rows=_without_device_numbers(_without_unused(joined(list(described.values())), kept), len(machines), kept),
        devices=tuple(machines.values()),
        software=measured.software,
        left_out=dict(sorted(left_out.items())),
        time_ns=folded["time_ns"].cast(pl.Float64).fill_null(float("nan")).to_numpy().copy(),
        noise=folded["noise"].fill_null(float("nan")).to_numpy().copy(),
        half_a=folded["half_a"].fill_null(float("nan")).to_numpy().copy(),
        half_b=folded["half_b"].fill_null(float("nan")).to_numpy().copy(),
        problem=_stretches(folded, ["device", *problem_columns]),
        group=row_numbers(folded, [f"problem.{name}" for name in family.op.split_group]),
        config=row_numbers(folded, config_columns),
        device=_stretches(folded, ["device"]),
        weight=np.ones(folded.height),
        allowed=allowed,
        broken=broken,
        digest=digest,
        labels=measured.labels,
        conditions=measured.conditions,
        device_software=measured.device_software,
    )
    devices = with_rates(table._timed, table.devices)
    return table if devices == table.devices else replace(table, devices=devices, rows=at_rates(table.rows, devices))


def _machine(name: str, family: Family, holders: Sequence[Dataset], where: Sequence[Condition]) -> Device:
    """A device, as the first of the datasets that has rows of it records it."""
    if len(holders) == 1:
        return holders[0].device(name)
    return next(holder.device(name) for holder in holders if (holder.read(family, where, ["device"])["device"] == name).any())


def _by_device(folded: pl.DataFrame) -> dict[str, slice]:
    """Where the rows of each device are: they are sorted by device."""
    counts = folded["device"].value_counts().sort("device")
    ends = np.cumsum(counts["count"])
    return {name: slice(end - count, end) for (name, count), end in zip(counts.iter_rows(), ends.tolist(), strict=True)}


def _judged(
    family: Family, machines: dict[str, Device], folded: pl.DataFrame, parts: dict[str, slice]
) -> tuple[tuple[BrokenRule, ...], Flags]:
    """The rules that rows break, and which rows obey the others; a pooled table is judged device by device."""
    broken, allowed = [], np.ones(folded.height, dtype=bool)
    ok = folded["time_ns"].is_not_null().to_numpy()
    for name, machine in machines.items():
        own = parts[name]
        found, obeys = judge_rules(family, machine, folded[own], ok[own])
        broken += [replace(item, example=own.start + item.example if item.example >= 0 else -1) for item in found]
        allowed[own] = obeys
    return tuple(broken), allowed


def _one_family(datasets: Sequence[Dataset], family: str | None) -> Family:
    known = {item.id: item for dataset in datasets for item in dataset.families}
    if family is not None and family.endswith(SUFFIX):
        declared = family_named(family)
        if declared.id in known:
            refuse_another_draft(declared, known[declared.id], datasets[0].path)
        family = declared.id
    if family is not None and family in known:
        return known[family]
    if family is None and len(known) == 1:
        return next(iter(known.values()))
    where = ", ".join(str(dataset.path) for dataset in datasets)
    if not known:
        for dataset in datasets:
            dataset.refuse_if_empty()
        raise InvalidValue("no dataset was named: give one or several")
    if family is None:
        raise InvalidValue(f"{where} holds several families ({', '.join(sorted(known))}): name one with `family`")
    raise InvalidValue(f"{where} holds no rows of {family}, only of {', '.join(sorted(known))}")


def tried_rows(pieces: Iterable[pl.DataFrame], where: Sequence[str], of: str, so: str) -> pl.DataFrame:
    """The rows that were tried; if none worked, the error says whether the conditions or the data are the reason."""
    asked = " and ".join(f"`where` '{condition}'" for condition in where)
    matching, kept = 0, []
    for piece in pieces:
        untried = piece["status"].is_in(NOT_TRIED)
        kept.append(piece.filter(~untried) if untried.any() else piece)
        matching += piece.height
    if asked and not matching:
        raise InvalidValue(f"no row of {of} matches {asked}: ask for less, or look with `kerncast inspect`")
    if not any((piece["status"] == "ok").any() for piece in kept):
        raise InvalidValue(f"no row of {of}{f' that matches {asked}' if asked else ''} has status ok: {so}")
    return stacked(kept)


def refuse_mixtures(rows: pl.DataFrame, columns: Iterable[str], pooled: Collection[str] = (), cure: str = "") -> None:
    """Refuse rows measured under different conditions, unless all of them are in `pooled`."""
    for column in columns:
        values = [str(value) for value in rows[column].drop_nulls().unique().sort()]
        if len(values) > 1 and not set(values) <= set(pooled):
            named = ", ".join(values[:3]) + (" …" if len(values) > 3 else "")
            raise InvalidValue(
                f"the rows come from {len(values)} {MIXTURES[column]} ({named}), whose times are not repeats of each "
                f"other: keep one with `where` '{column}=…'{cure}"
            )


def _dtypes(rows: pl.DataFrame, device: str) -> tuple[str, ...] | None:
    if "problem.dtype" not in rows.columns:
        return None
    return tuple(sorted(rows["problem.dtype"].filter(rows["device"] == device).unique()))


def _without_unused(rows: Rows, kept: Collection[str]) -> Rows:
    """The rows without features that read optional parameters, none of which is given in any row."""
    named = schema.parameter_columns(rows.family).items()
    optional = {f"{space.namespace}.{name}": column for column, (space, name) in named if name in space.optional}
    given = {symbol for symbol, column in optional.items() if rows.frame[column].null_count() < rows.frame.height}
    outputs = rows.family.outputs_of(rows.names)
    read = {name: {item.name for item in Program({name: outputs[name]}).symbols} & optional.keys() for name in rows.names}
    names = [name for name in rows.names if not read[name] or read[name] & given or name in kept]
    return rows if len(names) == len(rows.names) else rows.only(names)


def refuse_alike_devices(table: Table) -> None:
    """Refuse to learn from several devices together if nothing that is learned from differs between them."""
    outputs = table.rows.family.outputs_of(table.rows.names)
    read = {item.name for item in Program(outputs).symbols} if outputs else set()
    if len(table.devices) < 2 or table.rows.roofline_ns is not None or any(name.startswith("hw.") for name in read):
        return
    names = ", ".join(device.name for device in table.devices)
    raise InvalidValue(
        f"a model of {table.rows.family.id} could not tell {names} apart: no feature reads a number that the profiles of all "
        "of them have; give each its memory_bandwidth_gb_s or num_cus (docs/devices.md), or train on one at a time with "
        f"`where=device={table.devices[0].name}`"
    )


def _without_device_numbers(rows: Rows, devices: int, kept: Collection[str]) -> Rows:
    """The rows of a single device without features that are numbers of the device alone: they tell several apart."""
    if devices > 1:
        return rows
    outputs = rows.family.outputs_of(rows.names)
    read = {name: [item.name for item in Program({name: outputs[name]}).symbols] for name in rows.names}
    names = [
        name for name in rows.names if name in kept or not read[name] or not all(item.startswith("hw.") for item in read[name])
    ]
    return rows if len(names) == len(rows.names) else rows.only(names)


def _stretches(frame: pl.DataFrame, columns: list[str]) -> Ints:
    """The same as `row_numbers`, for columns by which the frame is sorted."""
    changed = frame.select(pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in columns)).to_series()
    numbers = np.cumsum(changed.to_numpy())
    return np.asarray(numbers - numbers[:1].sum(), dtype=np.int64)


def row_numbers(frame: pl.DataFrame, columns: list[str]) -> Ints:
    """0, 1, 2 … for the distinct values of some columns, in sorted order."""
    if not columns:
        return np.zeros(frame.height, dtype=np.int64)
    distinct = frame.select(columns).unique().sort(columns, nulls_last=True).with_row_index("__number")
    joined = frame.select(columns).join(distinct, on=columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["__number"].cast(pl.Int64).to_numpy().copy()
