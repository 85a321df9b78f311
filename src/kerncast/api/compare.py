"""`kerncast.compare`: is the new model safe to ship?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kerncast.api.results import Data, model_of, paths_of, texts
from kerncast.evaluating.compare import Limits, Verdict
from kerncast.evaluating.compare import compare as run
from kerncast.evaluating.predictions import write_predictions
from kerncast.files.output_paths import check_place
from kerncast.models.answer import Tier
from kerncast.models.model import Model


def compare(
    old: Model | str | Path,
    new: Model | str | Path,
    data: Data,
    *,
    max_mean: float = 0.5,
    max_median: float = 0.5,
    max_p10: float = 2.0,
    max_problem: float = 10.0,
    include_seen: bool = False,
    where: str | Sequence[str] = (),
    tier: Tier | str | None = None,
    save_predictions: str | Path | None = None,
) -> Verdict:
    """Compare two models on problems that neither has seen: BETTER, SAME, WORSE or AMBIGUOUS, with reasons.

    The limits are the allowed drops of efficiency, in per cent. `tier` (tree, portfolio, full) judges what that tier of
    each model would run instead of the models' own scores: name the tier that ships. `bool(verdict)` is False for WORSE.
    """
    place = None if save_predictions is None else Path(save_predictions)
    check_place("save_predictions", place)
    limits = Limits(max_mean / 100, max_median / 100, max_p10 / 100, max_problem / 100)
    found = run(
        model_of(old), model_of(new), paths_of(data), limits=limits, include_seen=include_seen, where=texts(where), tier=tier
    )
    if place is not None:
        write_predictions(place, found.problems)
    return found
