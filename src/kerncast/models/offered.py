"""A model that chooses from configs which it is given, instead of those that worked in its training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.arrays import Flags
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.answer import Answer
from kerncast.models.manifest import Range
from kerncast.models.model import Model

UNTRIED = "the model was not trained on this config, so its time has no interval"
_KNOWN = "__known"
FLAT = 2


class OfferedModel(Model):
    """A model with a pool of the user's own: a list of configs, of which it need not have seen any."""

    def __init__(
        self,
        own: Model,
        configs: pl.DataFrame,
        labels: pl.DataFrame | None = None,
        *,
        named_only: bool = False,
        dimensions: int | None = None,
    ) -> None:
        """`configs` has the columns `config.*`; `labels` says what they are called, as `label_table` does.

        With `named_only`, a config runs only those problems for which `labels` has a name of it; convolutions that are built
        for two or three `dimensions` run only those.
        """
        kinds = schema.schema_of(own.family)
        columns = [f"config.{name}" for name in own.family.config.parameters]
        pool = configs.select(pl.col(name).cast(kinds[name]) for name in columns).unique(maintain_order=True)
        if not pool.height:
            raise InvalidValue(f"there is no config to choose from: give at least one of {own.family.id}")
        digest = hashlib.blake2b(f"{own.manifest.checksum} {named_only} {dimensions}".encode(), digest_size=16)
        for frame in (pool, *(() if labels is None else (labels,))):
            digest.update(schema.content_digest([frame]).encode())
        manifest = msgspec.structs.replace(own.manifest, checksum=digest.hexdigest())
        super().__init__(own.path, manifest, own.family, own.learner, own.profile)
        self.own, self._pool, self._names, self._named_only, self._dimensions = own, pool, labels, named_only, dimensions

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """The configs that were given; those that worked in training with how well they did, the others with nothing."""
        columns = self._pool.columns
        seen = self.own.candidates.with_columns(pl.lit(True).alias(_KNOWN))
        joined = self._pool.join(seen, on=columns, how="left", nulls_equal=True, maintain_order="left")
        nothing = [pl.col(name).fill_null(0) for name in ("ok", "failed", "share")]
        return joined.select(*columns, *nothing, "portfolio_place", pl.col(_KNOWN).fill_null(False))

    @cached_property
    def known(self) -> Flags:
        """By candidate: whether it worked in training."""
        return self.candidates[_KNOWN].to_numpy()

    @property
    def label_table(self) -> pl.DataFrame | None:
        return self.own.label_table if self._names is None else self._names

    @property
    def always_failed(self) -> dict[tuple[Any, ...], int]:
        return self.own.always_failed

    @property
    def out_of_fold(self) -> None:
        """None: measurements of other configs say nothing of these."""
        return None

    @property
    def serving(self) -> None:
        """None: what is known of where configs were tried is of others."""
        return None

    @property
    def trust_digest(self) -> str:
        return self.own.trust_digest

    def built_for(self, problem: Mapping[str, Any]) -> Flags | None:
        if not self._named_only or self.labels is None:
            return None
        names = self.labels.names.get(tuple(problem.get(name) for name in self.labels.by))
        if self._dimensions not in (None, _dimensions(problem)):
            names = None
        return np.zeros(self.candidates.height, dtype=bool) if names is None else np.array([name is not None for name in names])

    def mark(self, answer: Answer, row: int) -> Answer:
        if not self.own.recorded:
            return super().mark(answer, row)
        if self.known[row]:
            return replace(answer, known=True)
        return self.promising(replace(answer, known=False, lower_ns=None, upper_ns=None, efficiency=None, note=UNTRIED))

    def for_export(self) -> OfferedModel:
        """The same model as an artefact can hold it, which has one list of configs for all its problems.

        Problems that the names are not of are outside its range, and there is no interval if one of the configs is untried.
        """
        hull = dict(self.manifest.hull)
        if self._named_only and self.labels is not None:
            lists = {tuple(name is not None for name in names) for names in self.labels.names.values()}
            if len(lists) > 1:
                kinds = "; ".join(sorted(" ".join(map(str, key)) for key in self.labels.names))
                raise InvalidValue(
                    f"not every kernel is there for each of {kinds}, and an export has one list for all of its problems: "
                    "export one of them at a time, each from a list of its own"
                )
            for place, name in enumerate(self.labels.by):
                hull[name] = Range(labels=tuple(sorted({key[place] for key in self.labels.names})))
            if self._dimensions == FLAT:
                hull |= {"Di": Range(1, 1), "Z": Range(1, 1), "pad_d": Range(0, 0)}
        interval = self.manifest.interval if self.known.all() else None
        copy = OfferedModel(self.own, self._pool, self._names, named_only=self._named_only, dimensions=self._dimensions)
        copy.manifest = msgspec.structs.replace(self.manifest, hull=hull, interval=interval)
        return copy


def _dimensions(problem: Mapping[str, Any]) -> int:
    """Whether a convolution is one of images or of volumes."""
    deep = any(problem.get(name, flat) != flat for name, flat in (("Di", 1), ("Z", 1), ("pad_d", 0)))
    return FLAT + deep
