"""Vectors described for a model: features, roofline, work, rates that a profile lacks. The same for training and serving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.core import dtypes, rates
from kerncast.core.arrays import Array, Flags, Floats, Ints
from kerncast.core.device import LARGEST, PEAK, SMALLEST, Device, hardware_namespace
from kerncast.core.expr import Expr, Program, Symbol
from kerncast.core.op import Family, FeatureSet, limits
from kerncast.data import schema
from kerncast.errors import InvalidValue

WORK = ("roofline_ns", "expected_ns", "flops", "bytes")
# About the time of an empty launch, by kind of device: a constant for learning, not a property of the hardware.
LAUNCH_NS = {"gpu": 5000.0, "npu": 1000.0, "cpu": 50.0}
Describe = Callable[[pl.DataFrame, "Ints | None"], Floats]


@dataclass(frozen=True)
class Rows:
    """Some vectors of one family, as a learner reads them."""

    family: Family
    frame: pl.DataFrame
    """`problem.*` and `config.*`, as stored in a dataset."""
    described: Floats | Describe
    """The features, or what computes them for a frame like this one (and the `device` of its rows)."""
    names: tuple[str, ...]
    codes: dict[str, tuple[int, ...]]
    """The features that are a categorical parameter unchanged, with the codes it may have."""
    roofline_ns: Floats | None
    expected_ns: Floats | None
    """The softened roofline; times are learned relative to it (`Work.expected_ns`)."""
    flops: Floats | None
    bytes: Floats | None
    limit_ns: Floats | None = None
    floor_ns: Floats | None = None
    peak_share: Floats | None = None
    """What no kernel can beat with the cores in use (`op.limits`): a yardstick, never learned from."""
    device: Ints | None = None
    """Which of several devices each row is of; None: all are of one."""

    @cached_property
    def features(self) -> Floats:
        """One row per vector, one column per name. Computed when it is first needed: it takes most of the memory."""
        return self.described(self.frame, self.device) if callable(self.described) else self.described

    def __len__(self) -> int:
        return self.frame.height

    def blocks(self, rows: int) -> Iterator[Rows]:
        """The same rows in blocks, whose features are computed one block at a time unless they are known already."""
        for start in range(0, max(1, len(self)), rows):
            yield self.take(np.arange(start, min(len(self), start + rows)))

    def take(self, index: Array) -> Rows:
        """The rows at some positions (or where a mask holds)."""
        mask = index if index.dtype != np.bool_ else np.flatnonzero(index)
        known = {name: getattr(self, name) for name in (*WORK, *limits.OUTPUTS, "device")}
        parts = {name: values[mask] for name, values in known.items() if values is not None}
        described = self.described if self._undescribed else self.features[mask]
        return replace(self, frame=self.frame[mask], described=described, **parts)

    @property
    def _undescribed(self) -> bool:
        """Whether the features were never computed."""
        return callable(self.described) and "features" not in self.__dict__

    @cached_property
    def is_library(self) -> Flags:
        """The rows of the vendor library's own choice, if the family declares which config that is."""
        if not self.family.library:
            return np.zeros(len(self), dtype=bool)
        return self.frame.select(schema.is_library(self.family)).to_series().fill_null(False).to_numpy()

    def only(self, names: Sequence[str]) -> Rows:
        """The same rows with some of the features, in that order."""
        places = [self.names.index(name) for name in names]
        codes = {name: self.codes[name] for name in names if name in self.codes}
        if not self._undescribed or not callable(self.described):
            some = np.ascontiguousarray(self.features[:, places])
            return replace(self, described=some, names=tuple(names), codes=codes)
        whole = self.described
        return replace(
            self,
            described=lambda frame, device: np.ascontiguousarray(whole(frame, device)[:, places]),
            names=tuple(names),
            codes=codes,
        )


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several devices, one device after the other; only what is known for all of them is kept."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].names if all(name in part.names for part in parts)]
    known = [part.only(names) for part in parts]

    def both(name: str) -> Floats | None:
        values = [getattr(part, name) for part in known]
        return None if any(item is None for item in values) else np.concatenate(values)

    def describe(frame: pl.DataFrame, device: Ints | None) -> Floats:
        features = np.empty((frame.height, len(names)))
        for number, part in enumerate(known):
            own = np.flatnonzero(device == number)
            if len(own):
                features[own] = replace(part, frame=frame[own]).features
        return features

    return Rows(
        parts[0].family,
        pl.concat([part.frame for part in known]),
        describe,
        known[0].names,
        known[0].codes,
        **{name: both(name) for name in (*WORK, *limits.OUTPUTS)},
        device=np.repeat(np.arange(len(known)), [len(part) for part in known]),
    )


@dataclass(frozen=True)
class Featurizer:
    """Computes the features of one family on one device for the dtypes that occur."""

    family: Family
    device: Device
    dtypes: tuple[str, ...] | None
    foreign: tuple[str, ...] = ()
    """Columns of another system's models to compute too (`Family.foreign_features`)."""

    @classmethod
    def reading(cls, family: Family, device: Device, dtypes: tuple[str, ...] | None, names: Collection[str]) -> Featurizer:
        """A featurizer that computes the features `names`, wherever the family declares them."""
        foreign = family.foreign_program.outputs
        return cls(family, device, dtypes, tuple(name for name in foreign if name in names))

    @cached_property
    def _features_on(self) -> FeatureSet:
        return self.family.features_on(self.device, self.dtypes, self.foreign)

    @property
    def program(self) -> Program:
        return self._features_on.program

    @property
    def left_out(self) -> dict[str, tuple[str, ...]]:
        """Features that need a number missing from this device's profile, with those numbers."""
        return dict(self._features_on.left_out)

    def work(self) -> Program:
        """`flops`, `bytes`, `roofline_ns` and `expected_ns`, each only if it is known."""
        return self._work

    @cached_property
    def _work(self) -> Program:
        work = self.family.work(self.family.op.namespace())
        if work is None:
            return Program({})
        bound = self.device.rates(self.family.op.dtype, self.dtypes)
        hw = hardware_namespace()
        expected = work.expected_ns(hw, LAUNCH_NS[self.device.kind])
        known = {"flops": work.flops, "bytes": work.bytes, "roofline_ns": work.roofline_ns(hw), "expected_ns": expected}
        outputs = Program(known).bind(bound).outputs
        return Program({name: expr for name, expr in outputs.items() if not _reads_hardware(expr)})

    @cached_property
    def _limits(self) -> Program:
        return limits.limit_program(self.family, self.device, self.dtypes)

    def describe(self, frame: pl.DataFrame, yardsticks: bool = False) -> Rows:
        """Features and work of the vectors in `frame` (columns `problem.*`, `config.*`); limits if `yardsticks`."""
        program = self.program
        symbols = schema.symbol_columns(self.family, frame)
        work = self.work()
        known = work.frame(symbols, trusted=True) if work.outputs else pl.DataFrame()
        parts = {name: known[name].to_numpy() if name in known.columns else None for name in WORK}
        if yardsticks and self._limits.outputs:
            bounds = self._limits.frame(symbols, trusted=True)
            parts |= {name: bounds[name].to_numpy() for name in bounds.columns}
        columns = list(schema.parameter_columns(self.family))
        codes = {
            name: tuple(code for _, code in expr.payload.codes)
            for name, expr in program.outputs.items()
            if isinstance(expr.payload, Symbol) and expr.payload.codes
        }
        return Rows(self.family, frame[columns], self._features, tuple(program.outputs), codes, **parts)

    def _features(self, frame: pl.DataFrame, _: Ints | None = None) -> Floats:
        features = self.program.columns(schema.symbol_columns(self.family, frame))
        _refuse_unusable(features, list(self.program.outputs), frame)
        return features


def _reads_hardware(expr: Expr) -> bool:
    return any(item.name.startswith("hw.") for item in Program({"": expr}).symbols)


def _refuse_unusable(features: Floats, names: Sequence[str], frame: pl.DataFrame) -> None:
    """Refuse a feature that is not finite, by name and with the row that shows it."""
    # Expressions saturate instead of becoming infinite, so the largest float counts as infinite.
    largest = np.finfo(np.float64).max
    if features.size and not (features.min() > -largest and features.max() < largest):
        bad = ~(np.abs(features) < largest)
        row, column = (int(place[0]) for place in np.nonzero(bad))
        values = {name: value for name, value in frame.row(row, named=True).items() if name.startswith(("problem.", "config."))}
        shown = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        raise InvalidValue(f"feature '{names[column]}' is {features[row, column]} for {shown}: fix its formula")


# A time is learned relative to what the declared work takes at a device's rates. How high these are matters little, for a
# constant factor is learned too. Without them a model would have to learn from the sizes alone how times grow with the work,
# and it errs far more between and beyond the sizes that were measured. So rates that a profile lacks are those that the
# fastest rows of a table reached.
# This share of the problems stays below the rate with its fastest config: one wrong label is not a peak.
FASTEST = 0.95


@dataclass(frozen=True)
class TimedRows:
    """Rows with their times (NaN: failed), and the problem and device of each."""

    rows: Rows
    time_ns: Floats
    problem: Ints
    device: Ints


def with_rates(timed: TimedRows, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with the rates that they lack, or that an op without a dtype exceeds; those that have estimates keep them."""
    family, used = timed.rows.family, _used(timed)
    lacking = [() if device.estimated else rates.unknown(family, device, used[place]) for place, device in enumerate(devices)]
    # Links are measured by no single device; without work there is nothing to compare a time with.
    if any(name not in (rates.BANDWIDTH, *dtypes.CODES) for names in lacking for name in names):
        return tuple(devices)
    if family.op.dtype is None and PEAK in rates.read(family):
        lacking = [
            # Rows of an op without a dtype may be faster than the peak rate of the implied one.
            (dtypes.IMPLIED,)
            if not names
            and not device.estimated
            and (_reached(timed, timed.device == place, dtypes.IMPLIED) or 0.0) > device.peak_tflops[dtypes.IMPLIED]
            else names
            for place, (device, names) in enumerate(zip(devices, lacking, strict=True))
        ]
    return _estimated(timed, devices, lacking)


def rates_again(timed: TimedRows, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with the same rates estimated from other rows."""
    return _estimated(timed, devices, [tuple(device.estimated) for device in devices])


def at_rates(rows: Rows, devices: Sequence[Device]) -> Rows:
    """The rows with their work at the rates of the devices, estimated ones too; the features stay."""
    number = np.zeros(len(rows), np.int64) if rows.device is None else rows.device
    parts: list[tuple[Ints, Rows]] = []
    for place, device in enumerate(devices):
        own = np.flatnonzero(number == place)
        if len(own):
            frame = rows.frame[own]
            parts.append((own, Featurizer(rows.family, device, _labels(frame)).describe(frame)))

    def column(values: Sequence[Floats | None]) -> Floats | None:
        whole = np.full(len(rows), np.nan)
        for (own, _), part in zip(parts, values, strict=True):
            if part is None:
                return None
            whole[own] = part
        return whole

    roofline, expected = ([part.roofline_ns for _, part in parts], [part.expected_ns for _, part in parts])
    return replace(rows, roofline_ns=column(roofline), expected_ns=column(expected))


def _estimated(timed: TimedRows, devices: Sequence[Device], lacking: Sequence[Sequence[str]]) -> tuple[Device, ...]:
    """The devices with these rates; what the rows do not say of one device is what is usual for the others."""
    if not any(lacking):
        return tuple(devices)
    reached = [
        {name: value for name in names if (value := _reached(timed, timed.device == place, name)) is not None}
        for place, names in enumerate(lacking)
    ]
    usual = [{**device.numbers, **device.peak_tflops, **found} for device, found in zip(devices, reached, strict=True)]
    made = []
    for device, names, found in zip(devices, lacking, reached, strict=True):
        whole = {name: found.get(name) or _usual(usual, name) for name in names}
        known = {name: value for name, value in whole.items() if value is not None}
        made.append(replace(device, estimated=known if len(known) == len(whole) else {}) if names else device)
    return tuple(made)


def _reached(timed: TimedRows, own: Flags, name: str) -> float | None:
    """The rate that the fastest rows of a device reached; None: no row says."""
    work = timed.rows.bytes if name == rates.BANDWIDTH else timed.rows.flops
    if name != rates.BANDWIDTH and timed.rows.family.op.dtype is not None:
        own = own & (timed.rows.frame["problem.dtype"] == name).to_numpy()
    if work is None:
        return None
    known = own & np.isfinite(timed.time_ns) & (work > 0)
    if not known.any():
        return None
    frame = pl.DataFrame({"problem": timed.problem[known], "rate": work[known] / timed.time_ns[known]})
    best = frame.group_by("problem").max()["rate"].sort().to_numpy()
    # Bytes per ns are GB/s, FLOP per ns GFLOP/s.
    rate = float(np.quantile(best, FASTEST, method="lower")) / (1.0 if name == rates.BANDWIDTH else 1e3)
    return min(max(rate, SMALLEST), LARGEST)


def _usual(known: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The median of a rate over devices; of a dtype that none has, that of the other dtypes."""
    found = [item[name] for item in known if name in item]
    if not found and name in dtypes.CODES:
        found = [value for item in known for other, value in item.items() if other in dtypes.CODES]
    return float(np.median(found)) if found else None


def _used(timed: TimedRows) -> list[tuple[str, ...] | None]:
    """The dtypes of the rows of each device."""
    places = range(int(timed.device.max()) + 1 if len(timed.device) else 0)
    return [_labels(timed.rows.frame.filter(pl.Series(timed.device == place))) for place in places]


def _labels(frame: pl.DataFrame) -> tuple[str, ...] | None:
    return tuple(frame["problem.dtype"].unique().sort()) if "problem.dtype" in frame.columns else None
