"""`kerncast.compare`: is the new model safe to ship?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.app.api.measured import paths_of
from kerncast.app.api.parameters import Datasets, ModelOf, RowsOf, Where
from kerncast.app.api.results import model_of, row_conditions
from kerncast.core.io.help import Help
from kerncast.core.io.places import check_place
from kerncast.errors import InvalidValue, NotFound
from kerncast.evaluating.compare import LIMITS, Limits, Verdict
from kerncast.evaluating.compare import compare as run
from kerncast.evaluating.predictions import write_predictions
from kerncast.evaluating.saved_comparison import compare_saved
from kerncast.models.answer import Tier
from kerncast.models.model import Model


def compare(
    old: Annotated[ModelOf, Help(metavar="OLD", names="models")],
    new: Annotated[ModelOf, Help(metavar="NEW", names="models")],
    data: Annotated[Datasets | None, Help(metavar="[DATASET...]", names="dataset_folders")] = None,
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

    `old` and `new` may also be two tables that `evaluate` wrote with `save_predictions`. These hold the measurements, so
    there is no `data`; only problems that are in both count.
    """
    place = None if save_predictions is None else Path(save_predictions)
    check_place("save_predictions", place)
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
