"""Configs that a user gives, to choose from instead of those that worked in training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.labels import Labels
from kerncast.models.limits.envelope import KNOWN
from kerncast.models.manifest import Range

if TYPE_CHECKING:
    from kerncast.models.model import Model

FLAT = 2


@dataclass(frozen=True, eq=False)
class GivenConfigs:
    """A list of configs, of which a model need not have seen any."""

    configs: pl.DataFrame
    """`config.*`."""
    names: pl.DataFrame | None = None
    """What they are called, as `label_table` says it; None: as in the training data."""
    named_only: bool = False
    """A config runs only those problems for which `names` has a name of it."""
    dimensions: int | None = None
    """Convolutions that are built for images (2) or volumes (3) run only those; None: both."""

    def candidates(self, model: Model) -> pl.DataFrame:
        """These configs: those that worked in the training of a model with how well they did, the others with nothing."""
        columns = self.configs.columns
        seen = model.candidates.with_columns(pl.lit(True).alias(KNOWN))
        joined = self.configs.join(seen, on=columns, how="left", nulls_equal=True, maintain_order="left")
        nothing = [pl.col(name).fill_null(0) for name in ("ok", "failed", "share")]
        return joined.select(*columns, *nothing, "portfolio_place", pl.col(KNOWN).fill_null(False))

    def built_for(self, problem: Mapping[str, Any], labels: Labels | None) -> Flags | None:
        """Which of them are there for a problem; None: all of them."""
        if not self.named_only or labels is None:
            return None
        names = labels.names.get(tuple(problem.get(name) for name in labels.by))
        if self.dimensions not in (None, _dimensions(problem)):
            names = None
        return np.zeros(self.configs.height, dtype=bool) if names is None else np.array([name is not None for name in names])


def with_configs(
    model: Model,
    configs: pl.DataFrame,
    names: pl.DataFrame | None = None,
    *,
    named_only: bool = False,
    dimensions: int | None = None,
) -> Model:
    """The model, choosing from these configs (`config.*`); the other arguments are those of `GivenConfigs`."""
    kinds = schema.schema_of(model.family)
    columns = [f"config.{name}" for name in model.family.config.parameters]
    pool = configs.select(pl.col(name).cast(kinds[name]) for name in columns).unique(maintain_order=True)
    if not pool.height:
        raise InvalidValue(f"there is no config to choose from: give at least one of {model.family.id}")
    digest = hashlib.blake2b(f"{model.manifest.checksum} {named_only} {dimensions}".encode(), digest_size=16)
    for frame in (pool, *(() if names is None else (names,))):
        digest.update(schema.content_digest([frame]).encode())
    manifest = msgspec.structs.replace(model.manifest, checksum=digest.hexdigest())
    return model.part(manifest, GivenConfigs(pool, names, named_only, dimensions))


def for_export(model: Model) -> Model:
    """The model as an artefact can hold it, which has one list of configs for all its problems.

    Problems that the names of given configs are not of are outside its range, and there is no interval if one of them is
    untried.
    """
    if model.given is None or model.own is None:
        return model
    hull = dict(model.manifest.hull)
    if model.given.named_only and model.labels is not None:
        lists = {tuple(name is not None for name in names) for names in model.labels.names.values()}
        if len(lists) > 1:
            kinds = "; ".join(sorted(" ".join(map(str, key)) for key in model.labels.names))
            raise InvalidValue(
                f"not every kernel is there for each of {kinds}, and an export has one list for all of its problems: "
                "export one of them at a time, each from a list of its own"
            )
        for place, name in enumerate(model.labels.by):
            hull[name] = Range(labels=tuple(sorted({key[place] for key in model.labels.names})))
        if model.given.dimensions == FLAT:
            hull |= {"Di": Range(1, 1), "Z": Range(1, 1), "pad_d": Range(0, 0)}
    interval = model.manifest.interval if model.candidates[KNOWN].all() else None
    return model.own.part(msgspec.structs.replace(model.manifest, hull=hull, interval=interval), model.given)


def _dimensions(problem: Mapping[str, Any]) -> int:
    """Whether a convolution is one of images or of volumes."""
    deep = any(problem.get(name, flat) != flat for name, flat in (("Di", 1), ("Z", 1), ("pad_d", 0)))
    return FLAT + deep
