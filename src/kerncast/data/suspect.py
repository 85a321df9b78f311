"""Leaving out rows whose labels belong to other rows, as `kerncast inspect` reports them."""

from __future__ import annotations

import polars as pl

from kerncast import devices
from kerncast.data.label_shift import DeviceOf, find_label_shift
from kerncast.op import Family

NOT_SUSPECT = "suspect=false"
"""The condition that stands for it beside those of `--where`, so that a model records it and is refitted by it."""


def without_suspect(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> pl.DataFrame:
    """The rows whose labels are their own; all rows of a file are needed, in any order, to tell."""
    return rows.filter(~pl.Series(find_label_shift(family, rows, device_of).suspect, dtype=pl.Boolean))
