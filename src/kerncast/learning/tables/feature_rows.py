"""Vectors described for a model: features, roofline, work. The same code for training and for serving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.core.arrays import Array, Flags, Floats, Ints
from kerncast.core.device import Device, hardware_namespace
from kerncast.core.expr import Program, Symbol
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

        def part(values: Floats | None) -> Floats | None:
            return None if values is None else values[mask]

        return replace(
            self,
            frame=self.frame[mask],
            described=self.described if self._undescribed else self.features[mask],
            roofline_ns=part(self.roofline_ns),
            expected_ns=part(self.expected_ns),
            flops=part(self.flops),
            bytes=part(self.bytes),
            limit_ns=part(self.limit_ns),
            floor_ns=part(self.floor_ns),
            peak_share=part(self.peak_share),
            device=None if self.device is None else self.device[mask],
        )

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
        return Program({name: expr for name, expr in outputs.items() if not _hardware_symbols(Program({name: expr}))})

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


def _hardware_symbols(program: Program) -> list[str]:
    return [item.name for item in program.symbols if item.name.startswith("hw.")]


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
