"""Tables of predictions (`save_predictions`): parquet, with a checksum of the cells in the file's metadata.

`evaluate` writes a row per vector, `compare` a row per problem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents
from kerncast.core.io.atomic import write_atomically
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.parquet import parquet_metadata, read_parquet
from kerncast.data.schema import content_digest
from kerncast.errors import BadFile, KerncastError
from kerncast.learning.scoring.metrics import Figures

KEY = "kerncast-predictions"
AGAIN = "evaluate the model again"


def write_predictions(path: Path, frame: pl.DataFrame) -> None:
    """Write a table, whole or not at all."""
    write_atomically(path, lambda draft: frame.write_parquet(draft, metadata={KEY: content_digest([frame])}))


def is_predictions(path: Path) -> bool:
    """Whether a parquet file says that it is such a table."""
    try:
        return KEY in parquet_metadata(path)
    except (OSError, KerncastError, pl.exceptions.PolarsError):
        return False


def read_predictions(path: Path) -> pl.DataFrame:
    """A table as it was written; one that was changed is refused."""
    with guarded(path, AGAIN):
        metadata, frame = parquet_metadata(path), read_parquet(path)
    if content_digest([frame]) != metadata.get(KEY):
        raise BadFile(f"{path} differs from its checksum: {AGAIN}")
    return frame


def check_predictions(findings: Findings) -> None:
    """A table of predictions: the checksum of its cells."""
    with findings.looking(findings.path):
        frame = read_predictions(findings.path)
        findings.checks += ["checksum", f"{frame.height:,} rows"]


def check_evaluation(findings: Findings) -> None:
    """What `evaluate --json` printed: the figures of the model and the baselines."""
    with findings.looking(findings.path, "figures"):
        try:
            data = read_json(findings.path, dict[str, Any])
            for card in (data["overall"], *data["baselines"].values()):
                Figures.of(card)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadFile(f"{findings.path} is damaged ({type(error).__name__}: {error}): evaluate the model again") from error
        findings.notes.append(f"{findings.path} has no checksum: what a command prints has none")


def _is_evaluation(contents: PathContents) -> bool:
    head = contents.head
    return contents.path.suffix == ".json" and b'"includes_training_data"' in head and b'"overall"' in head


PREDICTIONS = ArtefactKind(
    "predictions", lambda contents: contents.path.suffix == ".parquet" and is_predictions(contents.path), check_predictions
)
EVALUATION = ArtefactKind("evaluation", _is_evaluation, check_evaluation)
