"""A slim model: what answers need of a model, in as few bytes as they need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from kerncast.core.io.artefact import file_checksum, json_text
from kerncast.core.io.atomic import build_directory, refuse_unwritable
from kerncast.errors import InvalidValue
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.models.limits.choices import SERVING, serving_of
from kerncast.models.manifest import CANDIDATES, CARD, EVALUATION, IMPORTANCES, LABELS, write_manifest

if TYPE_CHECKING:
    from kerncast.models.model import Model

KEPT = (CANDIDATES, LABELS, IMPORTANCES, CARD)


def write_slim(model: Model, out: Path) -> None:
    """Write a model without what only training, tiers and evaluation read, completely or not at all.

    Its forests are packed, so numpy alone answers, with the same numbers. It has no out-of-fold predictions and no list of
    the problems that it was trained on.
    """
    if not model.recorded:
        raise InvalidValue(f"{model.path} is a model of another system, which has nothing to leave out: use it as it is")
    if model.slim:
        raise InvalidValue(f"{model.path} is a slim model already: copy it, or use the model that it was made from")
    refuse_unwritable(out)

    def fill(folder: Path) -> None:
        if isinstance(model.learner, Gbdt):
            model.learner.save_packed(folder)
        else:
            model.learner.save(folder)
        for name in KEPT:
            if name in model.manifest.files:
                shutil.copyfile(model.path / name, folder / name)
        (folder / EVALUATION).write_bytes(json_text({**model.evaluation, "held_out": held_out_errors(model)}))
        serving = serving_of(model)
        if serving is not None:
            serving.write(folder / SERVING)
        files = {file.name: file_checksum(file) for file in sorted(folder.iterdir())}
        write_manifest(folder, msgspec.structs.replace(model.manifest, files=files, slim=model.manifest.checksum))

    build_directory(out, fill)


def held_out_errors(model: Model) -> dict[str, dict[str, dict[str, float]]]:
    """By device and by dtype: rows, and the mean and the median error of the times that were predicted out of fold."""
    rows = model.out_of_fold
    if rows is None or not model.evaluated:
        return {}
    error = (pl.col("time_ns") / pl.col("measured_ns") - 1.0).abs()
    known = rows.filter(pl.col("time_ns").is_finite(), pl.col("measured_ns").is_finite()).with_columns(__error=error)
    found = {}
    for name, column in (("device", "device"), ("dtype", "problem.dtype")):
        if column not in known.columns or not known.height:
            continue
        parts = known.group_by(column).agg(
            pl.len().alias("rows"), pl.col("__error").mean().alias("mape"), pl.col("__error").median().alias("median_ape")
        )
        found[name] = {row[0]: dict(zip(parts.columns[1:], row[1:], strict=True)) for row in parts.sort(column).iter_rows()}
    return found
