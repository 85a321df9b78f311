"""`kerncast.compare`: is the new model safe to ship?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.app.api.measured import paths_of
from kerncast.app.api.parameters import Datasets, ModelOf, RowsOf, Where
from kerncast.app.api.results import model_of, row_conditions
from kerncast.core.io.arguments import Help, check_place
from kerncast.evaluating.compare import LIMITS, Limits, Verdict
from kerncast.evaluating.compare import compare as run
from kerncast.evaluating.results import write_predictions
from kerncast.models.answer import Tier


def compare(
    old: Annotated[ModelOf, Help(metavar="OLD", names="models")],
    new: Annotated[ModelOf, Help(metavar="NEW", names="models")],
    data: Datasets,
    *,
    limits: Limits = LIMITS,
    tier: Annotated[
        Tier | str | None,
        Help("Compare what this tier would run (tree, portfolio or full), instead of the models' own scores.", metavar="TIER"),
    ] = None,
    include_seen: Annotated[bool, Help("Use problems that a model was trained on too; labelled as such.")] = False,
    where: Where = (),
    software: RowsOf = None,
    save_predictions: Annotated[str | Path | None, Help("Write one row per problem.", metavar="PARQUET")] = None,
) -> Verdict:
    """Compare two models on problems that neither has seen: BETTER, SAME, WORSE or AMBIGUOUS, with reasons.

    `tier` (tree, portfolio, full) judges what that tier of
    each model would run instead of the models' own scores: name the tier that ships. `bool(verdict)` is False for WORSE.
    """
    place = None if save_predictions is None else Path(save_predictions)
    check_place("save_predictions", place)
    found = run(
        model_of(old), model_of(new), paths_of(data), limits=limits, include_seen=include_seen,
        where=row_conditions(where, software), tier=tier,
    )  # fmt: skip
    if place is not None:
        write_predictions(place, found.problems)
    return found
