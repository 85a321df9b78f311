"""How unlike the measured problems a problem is: how rare its alignment, sizes, ratios and labels are among them.

All of it is integer arithmetic and sums of stored numbers, so C computes the same to the last bit (`c/rarity.c`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
import numpy as np
import polars as pl

from kerncast.arrays import Floats, Ints
from kerncast.op import Family
from kerncast.parameters import Int, Parameter
from kerncast.tables.off_grid import FEWEST_VALUES, alignment

ALIGNMENT, OCTAVE, RATIO, LABEL = "alignment", "octave", "ratio", "label"
# The numbers that C knows the kinds of traits by.
WHAT = (ALIGNMENT, OCTAVE, RATIO, LABEL)
# A parameter that does not apply to a problem.
ABSENT = -1_000
# An octave is from one power of two to the next: the number of these that are not above a size.
POWERS = 2 ** np.arange(63, dtype=np.int64)


class Trait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trait of a problem, and how rare each of its values is."""

    what: str
    """The power of two that divides a size; its octave; the difference of two octaves; the code of a label."""
    of: tuple[str, ...]
    values: tuple[int, ...]
    """The values among the measured problems, ascending."""
    bits: tuple[float, ...]
    """By value: log2 of how many times more frequent the most frequent value is."""
    unseen: float
    """The bits of any other value."""

    def rarity(self, found: Ints) -> Floats:
        """The bits of each value."""
        known = np.array(self.values, np.int64)
        place = np.minimum(np.searchsorted(known, found), len(known) - 1)
        return np.where(known[place] == found, np.array(self.bits)[place], self.unseen)


class Traits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The traits that vary among the measured problems."""

    traits: tuple[Trait, ...]

    @classmethod
    def of(cls, family: Family, problems: pl.DataFrame) -> Traits:
        """Count the traits of measured problems, one row (`problem.*`) each."""
        found = []
        for what, names, values in _values(family, _codes(family, problems, family.problem.parameters)):
            known, counts = np.unique(values, return_counts=True)
            bits = np.log2((counts.max() + 1) / (counts + 1))
            unseen = float(np.log2(counts.max() + 1))
            found.append(Trait(what, names, tuple(known.tolist()), tuple(bits.tolist()), unseen))
        return cls(tuple(found))

    def rarity(self, family: Family, problems: pl.DataFrame) -> Floats:
        """The rarity of each problem (`problem.*`): the sum of its traits'."""
        total, columns = np.zeros(problems.height), _codes(family, problems, {name for item in self.traits for name in item.of})
        for trait in self.traits:
            total = total + trait.rarity(_trait(trait.what, [columns[name] for name in trait.of]))
        return total


def _codes(family: Family, problems: pl.DataFrame, names: Collection[str]) -> dict[str, Ints]:
    """Some parameters as C reads them: sizes as they are, labels and flags by their codes."""
    return {name: _code(family.problem.parameters[name], problems[f"problem.{name}"]) for name in names}


def _code(parameter: Parameter, column: pl.Series) -> Ints:
    if parameter.codes:
        codes = {parameter.value(i): parameter.number(i) for i in range(parameter.size)}
        return np.array([ABSENT if value is None else codes[value] for value in column.to_list()], np.int64)
    whole = column.cast(pl.Int64)
    return (whole.fill_null(ABSENT) if whole.null_count() else whole).to_numpy()


def _values(family: Family, columns: Mapping[str, Ints]) -> Iterator[tuple[str, tuple[str, ...], Ints]]:
    """Every trait that a set of problems has more than one value of."""
    sizes = []
    for name, values in columns.items():
        if not isinstance(family.problem.parameters[name], Int):
            if len(np.unique(values)) > 1:
                yield LABEL, (name,), values
        elif len(np.unique(values)) >= FEWEST_VALUES:
            sizes.append(name)
            for what in (ALIGNMENT, OCTAVE):
                yield what, (name,), _trait(what, [values])
    for place, name in enumerate(sizes):
        for other in sizes[:place]:
            yield RATIO, (name, other), _trait(RATIO, [columns[name], columns[other]])


def _trait(what: str, columns: list[Ints]) -> Ints:
    first = columns[0]
    if what == LABEL:
        return first
    absent = np.logical_or.reduce([values == ABSENT for values in columns])
    if what == ALIGNMENT:
        found = alignment(first)
    else:
        octaves = [np.searchsorted(POWERS, values, side="right") for values in columns]
        found = octaves[0] if what == OCTAVE else octaves[0] - octaves[1]
    return np.where(absent, ABSENT, found)
