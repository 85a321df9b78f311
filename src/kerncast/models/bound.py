"""A model of several devices, bound to one of them: what choosing, compiling and exporting need."""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec
import polars as pl

from kerncast.errors import InvalidValue
from kerncast.models.model import Model
from kerncast.models.reach import worked_on
from kerncast.models.serving import Serving


class BoundModel(Model):
    """Its candidates are those that worked on this device, its dtypes those that were measured there."""

    def __init__(self, own: Model, device: str) -> None:
        records = {record.name: record for record in own.manifest.devices}
        if device not in records:
            raise InvalidValue(f"{own.path} was trained on {', '.join(records)}, not on {device}: name one of these")
        digest = hashlib.blake2b(f"{own.manifest.checksum} on {device}".encode(), digest_size=16)
        manifest = msgspec.structs.replace(
            own.manifest, devices=(records[device],), dtypes=own.manifest.dtypes_on(device),
            hull=own.manifest.hull_on(device), device_dtypes={}, device_software={},
            software=own.manifest.software_on(device), checksum=digest.hexdigest(),
        )  # fmt: skip
        super().__init__(own.path, manifest, own.family, own.learner)
        self.own = own

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """The candidates that worked on this device."""
        there = self.own.candidates
        if not self.family.config.parameters or (self.own.out_of_fold is None and self.own.serving is None):
            return there
        return there.filter(pl.Series(worked_on(self.own, self.device.name)))

    @cached_property
    def out_of_fold(self) -> pl.DataFrame | None:
        """The predictions for this device."""
        whole = self.own.out_of_fold
        return None if whole is None else whole.filter(pl.col("device") == self.device.name)

    @cached_property
    def serving(self) -> Serving | None:
        return None if self.own.serving is None else self.own.serving.narrowed(self.device.name)

    @property
    def trust_digest(self) -> str:
        return self.own.trust_digest
