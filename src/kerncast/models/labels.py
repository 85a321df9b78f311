"""Names of kernels as the training data have them: a column of the source that says which kernel a row ran.

A name may say more than the config does (CK Tile's contain dtype and layout). Then it depends on some parameters of the
problem too, and one config has several names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from kerncast.data.schema import LABEL

NUMBER = "__number"


@dataclass(frozen=True)
class Labels:
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


def labels_of(table: pl.DataFrame, candidates: pl.DataFrame) -> Labels:
    """The names of candidates, from a table of names."""
    configs = [name for name in table.columns if name.startswith("config.")]
    by = [name for name in table.columns if name.startswith("problem.")]
    numbered = candidates.select(configs).with_row_index(NUMBER)
    joined = table.join(numbered, on=configs, how="inner", nulls_equal=True, maintain_order="left")
    found: dict[tuple[Any, ...], list[str | None]] = {}
    for row in joined.select(*by, NUMBER, LABEL).iter_rows():
        *key, number, label = row
        found.setdefault(tuple(key), [None] * candidates.height)[number] = label
    return Labels(tuple(name.removeprefix("problem.") for name in by), {key: tuple(names) for key, names in found.items()})


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
