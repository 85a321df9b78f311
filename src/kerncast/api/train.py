"""`kerncast.train`: train a model on measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerncast.api.results import Data, model_of, paths_of, place_of, texts
from kerncast.api.showing import Wanted, shown
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import InvalidValue
from kerncast.models.ck.layout import TARGETS as CK_TARGETS
from kerncast.models.ck.layout import weights_file
from kerncast.models.model import Model
from kerncast.training.procedure import Procedure
from kerncast.training.recipe import Recipe
from kerncast.training.train import train as run

TARGETS = ("relative", "latency", "tflops", "bandwidth")


def train(
    data: Data,
    *,
    out: str | Path | None = None,
    model: str | None = None,
    family: str | None = None,
    where: str | Sequence[str] = (),
    drop_suspect: bool = False,
    pool: bool = False,
    targets: str | None = None,
    raw_target: bool = False,
    folds: int | None = None,
    seed: int = 0,
    threads: int = 0,
    warm_start: Model | str | Path | None = None,
    hard_mining: int = 0,
    tune: int = 0,
    format: str = "kerncast",
    progress: Wanted = "auto",
    **knobs: Any,
) -> Model:
    """Train a model on measurements and evaluate it out of fold, on problems that it has not seen.

    `model` is the kind (gbdt by default), `knobs` are options of that kind: `trees=300`, `hidden=(100, 50)`. The figures are
    in `model.evaluation`; `folds=0` trains without evaluation. If it is interrupted, the same call with the same `out`
    continues with the remaining folds.
    """
    if format not in ("kerncast", "ck"):
        raise InvalidValue(f"`format` is kerncast or ck, got '{format}'")
    if warm_start is not None and folds:
        raise InvalidValue(f"`folds={folds}` does not go with `warm_start`, which has one fixed hold-out: leave it out")
    base = None if warm_start is None else model_of(warm_start)
    first, *others = (name.strip() for name in (targets or (_ck_targets(base) if format == "ck" else "")).split(","))
    if others and format != "ck":
        raise InvalidValue(f"one model has one target, got {targets}: train one model per target, or use `format=ck`")
    strange = [name for name in (first, *others) if name and name not in TARGETS]
    if strange:
        raise InvalidValue(f"`targets` is one of {', '.join(TARGETS)}, got '{strange[0]}'")
    recipe = Recipe(
        kind=model or ("gbdt" if base is None else base.manifest.kind),
        knobs={name: value for name, value in knobs.items() if value is not None},
        target=first or None,
        target_log=False if raw_target else None,
        folds=folds or Recipe.folds,
        seed=seed,
        threads=threads,
        hard_mining=hard_mining,
        tune=tune,
    )
    # An unknown kind or knob is refused before the data are read.
    Procedure(recipe).options()
    Procedure(recipe).tuned_knobs()
    conditions = (*texts(where), NOT_SUSPECT) if drop_suspect else texts(where)
    with shown(progress) as show:
        return run(
            paths_of(data), place_of(out, "model"), recipe, family=family, where=conditions, pool=pool, warm_start=base,
            ck=tuple(others) if format == "ck" else None, no_folds=folds == 0, progress=show,
        )  # fmt: skip


def _ck_targets(base: Model | None) -> str:
    """The targets of CK's files if none are given: those of the forests to continue, else TFLOPS."""
    if base is None:
        return "tflops"
    own = base.manifest.target
    return ",".join([own, *(name for name in CK_TARGETS if name != own and weights_file(base.path, name) is not None)])


def refuse_folds(warm_start: object, folds: int | None) -> None:
    """Refuse folds for a warm start, which is evaluated on one fixed hold-out."""
    if warm_start is not None and folds:
        raise InvalidValue(f"`folds={folds}` does not go with `warm_start`, which has one fixed hold-out: leave it out")
