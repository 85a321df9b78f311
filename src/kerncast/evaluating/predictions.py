"""Tables of predictions (`save_predictions`): parquet, with a checksum of the cells in the file's metadata.

`evaluate` writes a row per vector and notes what was judged; two of these can be compared without the models. `compare`
writes a row per problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents
from kerncast.core.io.atomic import write_atomically
from kerncast.core.io.foreign import decode_json, guarded, read_json
from kerncast.core.io.parquet import parquet_metadata, read_parquet
from kerncast.data.schema import content_digest
from kerncast.errors import BadFile, KerncastError
from kerncast.evaluating.results import Evaluation
from kerncast.learning.scoring.metrics import Figures

KEY, FACTS = "kerncast-predictions", "kerncast-evaluated"
AGAIN = "evaluate the model again"
_NEEDED = {"device", "measured_ns", "chosen", "noise"}


class Evaluated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the rows of a table of predictions are of."""

    family: str
    model: str
    datasets: tuple[str, ...]
    split: str | None
    includes_training_data: bool


@dataclass(frozen=True)
class Saved:
    """The predictions of one evaluation, read from a file."""

    path: Path
    evaluated: Evaluated
    rows: pl.DataFrame
    """A row per vector: `problem.*`, `config.*`, `device`, `measured_ns` (null: it failed), `predicted_ns` (if the model
    predicts times), `chosen`, `noise`."""


def write_evaluated(path: Path, found: Evaluation) -> None:
    """Write every vector of an evaluation with its prediction, those that failed last."""
    evaluated = Evaluated(found.family, found.model, found.datasets, found.split, found.includes_training_data)
    write_predictions(path, pl.concat([found.rows, found.failures], how="diagonal"), evaluated)


def write_predictions(path: Path, frame: pl.DataFrame, evaluated: Evaluated | None = None) -> None:
    """Write a table, whole or not at all."""
    said = None if evaluated is None else msgspec.json.encode(evaluated).decode()
    metadata = {KEY: _digest(frame, said)} | ({} if said is None else {FACTS: said})
    write_atomically(path, lambda draft: frame.write_parquet(draft, metadata=metadata))


def _digest(frame: pl.DataFrame, said: str | None) -> str:
    return content_digest([frame] if said is None else [frame, pl.DataFrame({FACTS: [said]})])


def is_predictions(path: Path) -> bool:
    """Whether a parquet file says that it is such a table."""
    try:
        return KEY in parquet_metadata(path)
    except (OSError, KerncastError, pl.exceptions.PolarsError):
        return False


def read_predictions(path: Path) -> pl.DataFrame:
    """A table as it was written; one that was changed is refused."""
    return _read(path)[0]


def _read(path: Path) -> tuple[pl.DataFrame, str | None]:
    with guarded(path, AGAIN):
        metadata, frame = parquet_metadata(path), read_parquet(path)
    content, said = metadata.get(KEY), metadata.get(FACTS)
    if _digest(frame, said) != content:
        raise BadFile(f"{path} differs from its checksum: {AGAIN}")
    return frame, said


def read_evaluated(path: Path) -> Saved:
    """The predictions that `evaluate` wrote; any other file is refused."""
    if not is_predictions(path):
        raise BadFile(f"{path} is not a table of predictions: `kerncast evaluate` writes one with `save_predictions`")
    rows, said = _read(path)
    try:
        evaluated = None if said is None else decode_json(said, type=Evaluated)
    except msgspec.DecodeError as error:
        raise BadFile(f"{path} does not say what was evaluated ({error}): {AGAIN}") from error
    if evaluated is None or not set(rows.columns) >= _NEEDED:
        # A file of `compare` has a row per problem.
        raise BadFile(f"{path} does not hold what two evaluations are compared by: {AGAIN} with `save_predictions`")
    return Saved(path, evaluated, rows)


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
