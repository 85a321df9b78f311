"""`kerncast.compare`: is the new model safe to ship?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kerncast.api.measured import Data, paths_of
from kerncast.api.results import model_of, row_conditions
from kerncast.errors import InvalidValue, NotFound
from kerncast.evaluating.compare import Limits, Verdict
from kerncast.evaluating.compare import compare as run
from kerncast.evaluating.predictions import write_predictions
from kerncast.evaluating.saved_comparison import compare_saved
from kerncast.files.places import check_place
from kerncast.models.answer import Tier
from kerncast.models.model import Model


def compare(
    old: Model | str | Path,
    new: Model | str | Path,
    data: Data | None = None,
    *,
    max_mean: float = 0.5,
    max_median: float = 0.5,
    max_p10: float = 2.0,
    max_problem: float = 10.0,
    include_seen: bool = False,
    where: str | Sequence[str] = (),
    software: str | None = None,
    tier: Tier | str | None = None,
    save_predictions: str | Path | None = None,
) -> Verdict:
    """Compare two models on problems that neither has seen: BETTER, SAME, WORSE or AMBIGUOUS, with reasons.

    The limits are the allowed drops of efficiency, in per cent. `tier` (tree, portfolio, full) judges what that tier of
    each model would run instead of the models' own scores: name the tier that ships. `bool(verdict)` is False for WORSE.

    `old` and `new` may also be two tables that `evaluate` wrote with `save_predictions`. These hold the measurements, so
    there is no `data`; only problems that are in both count.
    """
    place = None if save_predictions is None else Path(save_predictions)
    check_place("save_predictions", place)
    limits = Limits(max_mean / 100, max_median / 100, max_p10 / 100, max_problem / 100)
    saved = [item for item in (old, new) if not isinstance(item, Model) and Path(item).is_file()]
    if saved:
        _refuse_mixed(
            old, new, saved[0], data=data, include_seen=include_seen, where=row_conditions(where, None), software=software,
            tier=tier,
        )  # fmt: skip
        found = compare_saved(Path(str(old)), Path(str(new)), limits=limits)
    elif data is None:
        raise InvalidValue("two models are compared on measured problems: name at least one dataset")
    else:
        found = run(
            model_of(old), model_of(new), paths_of(data), limits=limits, include_seen=include_seen,
            where=row_conditions(where, software), tier=tier,
        )  # fmt: skip
    if place is not None:
        write_predictions(place, found.problems)
    return found


def _refuse_mixed(old: Model | str | Path, new: Model | str | Path, saved: str | Path, **others: object) -> None:
    """Refuse what cannot be asked of saved predictions: another side that is a model, and choosing among problems."""
    for item in (old, new):
        if not isinstance(item, Model) and not Path(item).exists():
            raise NotFound(f"there is no file {item}: `kerncast evaluate` writes predictions with `save_predictions`")
        if isinstance(item, Model) or not Path(item).is_file():
            name = item.path if isinstance(item, Model) else item
            raise InvalidValue(
                f"{saved} is a file, {name} is not: compare two models, or two files that `kerncast evaluate` wrote with "
                "`save_predictions`"
            )
    if others["data"] is not None:
        raise InvalidValue(f"{saved} holds the measurements that the model was evaluated on: leave the datasets out")
    for name in ("include_seen", "where", "software", "tier"):
        if others[name]:
            raise InvalidValue(f"`{name}` does not apply to saved predictions: leave it out, or compare the models")
