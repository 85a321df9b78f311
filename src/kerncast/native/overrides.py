"""Which configs are available and which choices are fixed: set by the user of a model, without training it again.

    available = ["gemm_fp16_rcr_a", "gemm_fp16_rcr_b"]   # only these; left out: all
    deny = ["gemm_fp16_rcr_b", { pipeline = "mem" }]      # never these

    [[pin]]
    problem = { M = 1 }                                   # all problems with these values
    label = "gemm_fp16_rcr_a"                             # or config = { … }, or candidate = 7

A kernel is named by its label, by its candidate number, or by parameters of its config (all configs that have these values).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kerncast.core.arrays import Flags, Ints
from kerncast.core.expr import Program
from kerncast.core.io.artefact import kind_that_is_read
from kerncast.core.io.foreign import key_rule, read_toml
from kerncast.core.io.terminal import assignments
from kerncast.core.op import Problem
from kerncast.core.space import Space
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.table import BoundRule, config_rules, problem_rules
from kerncast.models.candidates import model_rules
from kerncast.models.model import Model
from kerncast.native import MISSING, encode

Named = str | int | dict[str, Any]


class PinnedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice that is fixed: for all problems that have these values, by one of three names of a kernel."""

    problem: dict[str, Any]
    label: str | None = None
    config: dict[str, Any] | None = None
    candidate: int | None = None

    @property
    def kernel(self) -> Named:
        """The one name that is given."""
        given: list[Named] = [item for item in (self.label, self.config, self.candidate) if item is not None]
        if len(given) != 1:
            raise InvalidValue(
                f"the pin of {assignments(self.problem) or 'all problems'} needs exactly one of label, config and candidate, "
                f"got {len(given)}"
            )
        return given[0]


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `overrides.toml`."""

    available: list[Named] | None = None
    deny: list[Named] = []
    pin: list[PinnedChoice] = []


def read_overrides(source: Overrides | Mapping[str, Any] | str | Path) -> Overrides:
    """Overrides from a TOML file, or from a mapping of the same form."""
    if isinstance(source, Overrides):
        return source
    try:
        if isinstance(source, Mapping):
            return msgspec.convert(dict(source), Overrides)
        return msgspec.convert(read_toml(Path(source)), Overrides)
    except OSError as error:
        raise NotFound(f"cannot read {source} ({error.strerror}): `overrides` is a TOML file") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        what = "the overrides" if isinstance(source, Mapping) else str(source)
        form = "they have the keys available, deny and [[pin]] with problem and label (docs/selecting.md)"
        raise BadFile(f"{what}: {key_rule(error)}; {form}") from error


@dataclass(frozen=True)
class Decided:
    """Overrides of one model, in its own numbers."""

    available: Flags
    """By candidate."""
    patterns: Ints
    """[pin, problem parameter]: the numbers that C reads; MISSING matches every value."""
    pinned: Ints
    """By pin: the candidate."""
    space: Space
    """That of the problems."""
    notes: tuple[str, ...] = ()

    @property
    def denied(self) -> Ints:
        """The candidates that are never chosen."""
        return np.flatnonzero(~self.available)

    def pin_for(self, problem: Mapping[str, Any]) -> int:
        """The candidate pinned for a problem, or -1: the last pin that matches counts."""
        numbers = np.array(encode(self.space, problem), np.int64)
        same = (self.patterns == MISSING) | (self.patterns == numbers)
        for place, name in self._optional:
            if numbers[place] == MISSING:
                # A problem never has the usual value of an optional parameter (`lda` of a packed matrix); a pin may name it.
                same[:, place] |= [self.space.is_usual(name, number, problem) for number in self.patterns[:, place].tolist()]
        found = np.flatnonzero(same.all(axis=1))
        return int(self.pinned[found[-1]]) if len(found) else -1

    @cached_property
    def _optional(self) -> list[tuple[int, str]]:
        """The optional parameters that some pin names, with their places."""
        places = [(place, name) for place, name in enumerate(self.space.parameters) if name in self.space.optional]
        return [(place, name) for place, name in places if (self.patterns[:, place] != MISSING).any()]


def decide(model: Model, source: Overrides | Mapping[str, Any] | str | Path) -> Decided:
    """Overrides checked against a model; what could never be applied is refused by name."""
    return _Deciding(model, read_overrides(source)).decided()


class _Deciding:
    def __init__(self, model: Model, overrides: Overrides) -> None:
        self.model, self.family, self.overrides = model, model.family, overrides
        if not self.family.config.parameters:
            raise InvalidValue(f"{self.family.id} has exactly one config: there is nothing to deny or to pin")

    def decided(self) -> Decided:
        given, count = self.overrides, self.model.candidates.height
        notes, available = [], np.ones(count, dtype=bool)
        if given.available is not None:
            found = [self._candidates(item) for item in given.available]
            unknown = [item for item, rows in zip(given.available, found, strict=True) if not len(rows)]
            available[:] = False
            for rows in found:
                available[rows] = True
            if unknown:
                notes.append(f"{len(unknown):,} of {len(found):,} available kernels are not in the model (first: {unknown[0]})")
        for item in given.deny:
            rows = self._candidates(item)
            if not len(rows):
                raise NotFound(f"`deny`: {self._unknown(item)}")
            available[rows] = False
        if not available.any():
            raise InvalidValue(f"the overrides leave none of the {count:,} configs: allow at least one")
        patterns, pinned = [], []
        for pin in given.pin:
            row = self._pinned(pin, available)
            pinned.append(row)
            patterns.append(self._pattern(pin, row))
        shape = (len(patterns), len(self.family.problem.parameters))
        numbers = np.array(patterns, np.int64).reshape(shape)
        return Decided(available, numbers, np.array(pinned, dtype=np.int64), self.family.problem, tuple(notes))

    # -- kernels by name -------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        return {name: self.model.candidates[f"config.{name}"].to_list() for name in self.family.config.parameters}

    def _candidates(self, item: Named) -> Ints:
        """The candidates that a name stands for; none if the model does not know it."""
        count = self.model.candidates.height
        if isinstance(item, bool):
            raise InvalidValue(f"a kernel is named by its label, its number or parameters of its config, got {item}")
        if isinstance(item, str):
            if self.model.labels is None:
                raise InvalidValue(
                    f"'{item}': the data of {self.model.path} name no kernels; name the config by its parameters, or import "
                    "the data with a label column and train again"
                )
            return np.array(self.model.labels.candidates.get(item, ()), dtype=np.int64)
        if isinstance(item, int):
            return np.array([item] if 0 <= item < count else [], dtype=np.int64)
        space, same = self.family.config, np.ones(count, dtype=bool)
        for name, value in item.items():
            if name not in space.parameters:
                raise NotFound.named(f"parameter of {self.family.id}", name, space.parameters)
            parameter = space.parameters[name]
            if parameter.index(value) is None:
                raise InvalidValue(f"{name} {parameter.refusal(value)}")
            same &= np.array([known is not None and known == value for known in self._columns[name]], dtype=bool)
        return np.flatnonzero(same)

    def _unknown(self, item: Named) -> str:
        known = self.model.labels.candidates if isinstance(item, str) and self.model.labels is not None else ()
        near = difflib.get_close_matches(str(item), known, n=1)
        said = assignments(item) if isinstance(item, dict) else f"'{item}'"
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"none of the {self.model.candidates.height:,} configs that worked in training is {said}{hint}"

    # -- pins ------------------------------------------------------------------------------------------

    def _pinned(self, pin: PinnedChoice, available: Flags) -> int:
        rows, told = self._candidates(pin.kernel), f"the pin of {assignments(pin.problem) or 'all problems'}"
        if not len(rows):
            raise NotFound(f"{told}: {self._unknown(pin.kernel)}")
        if len(rows) > 1:
            raise InvalidValue(
                f"{told}: {len(rows):,} configs are so named; name one of them by its label or by more of its parameters"
            )
        if not available[rows[0]]:
            raise InvalidValue(f"{told}: its kernel is denied or not available; pin another, or allow it")
        return int(rows[0])

    @cached_property
    def _rules(self) -> list[tuple[BoundRule, Program]]:
        """What a pinned kernel has to satisfy."""
        rules = model_rules(self.model)
        return [(rule, Program({rule.name: rule.holds})) for rule in (*problem_rules(rules), *config_rules(rules))]

    def _pattern(self, pin: PinnedChoice, row: int) -> list[int]:
        space, told = self.family.problem, f"the pin of {assignments(pin.problem) or 'all problems'}"
        unknown = [name for name in pin.problem if name not in space.parameters]
        if unknown:
            raise NotFound.named(f"parameter of {self.family.op.name}", unknown[0], space.parameters)
        try:
            pattern = encode(space, pin.problem)
            whole = all(
                name in pin.problem or parameter.default is not None or parameter.nullable
                for name, parameter in space.parameters.items()
            )
            # Defaults are filled in for checking alone: where they are not given, the pin holds for all values. Whether the
            # value of an optional parameter is the usual one, which is read as missing, is known if the problem is.
            unsure = {name for name, usual in space.optional.items() if usual is not None}
            part = {name: value for name, value in pin.problem.items() if name not in unsure}
            known = space.qualified(Problem(self.family, pin.problem).as_dict() if whole else part)
        except InvalidValue as error:
            raise InvalidValue(f"{told}: {error}") from error
        config = self.family.config.qualified({name: values[row] for name, values in self._columns.items()})
        for rule, program in self._rules:
            # A rule that also reads what the pin leaves open is checked for each problem, when it is asked.
            complete = all(symbol.name in known or symbol.name in config for symbol in program.symbols)
            if complete and not program.scalar({**config, **known})[rule.name]:
                raise InvalidValue(f"{told}: its kernel cannot run them: {rule.sentence}")
        return pattern


# What fits a model is checked with the model; here, that every pin names one kernel.
OVERRIDES = kind_that_is_read(
    "overrides",
    lambda contents: bool(contents.toml) and contents.toml.keys() <= {"available", "deny", "pin"},
    lambda path: [pin.kernel for pin in read_overrides(path).pin],
    "keys",
)
