"""Measurements on disk: schema, datasets, quality checks, importers of foreign formats."""

from __future__ import annotations

from kerncast.data.dataset import Dataset
from kerncast.data.schema import Status

__all__ = ["Dataset", "Status"]
