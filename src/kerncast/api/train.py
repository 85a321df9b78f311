"""`kerncast.train`: train a model on measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerncast.api.measured import Data, paths_of
from kerncast.api.on_ray import LOCAL, spread_over
from kerncast.api.results import model_of, place_of, row_conditions, texts
from kerncast.api.showing import Wanted, shown
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import InvalidValue
from kerncast.files.places import given_path
from kerncast.learners.mlp_csv import Network, read_network
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
    software: str | None = None,
    drop_suspect: bool = False,
    pool: bool = False,
    targets: str | None = None,
    raw_target: bool = False,
    folds: int | None = None,
    rows: int = 0,
    seed: int = 0,
    threads: int = 0,
    warm_start: Model | str | Path | None = None,
    hard_mining: int = 0,
    tune: int = 0,
    format: str = "kerncast",
    features: str | Sequence[str] = (),
    weights: str | Path | None = None,
    on: str = LOCAL,
    address: str | None = None,
    progress: Wanted = "auto",
    **knobs: Any,
) -> Model:
    """Train a model on measurements and evaluate it out of fold, on problems that it has not seen.

    `model` is the kind (gbdt by default), `knobs` are options of that kind: `trees=300`, `hidden=(100, 50)`. The figures are
    in `model.evaluation`; `folds=0` trains without evaluation. If it is interrupted, the same call with the same `out`
    continues with the remaining folds.

    `software` keeps rows of one program: `vllm` (of each device, the newest version that it has), `vllm==0.24.0`. With `pool`,
    rows of several devices and versions are learned from together.

    `rows` is the most to learn from (0: all): whole problems are drawn by the seed, of each device about as many.

    `features` are those to learn from, if not all of the family's. `weights` is a folder of CSV files as `export` writes them
    for an mlp: that network is taken as it is, and is not evaluated.

    With `on="ray"`, folds and the other fits are tasks of the Ray cluster at `address`; the model is the same.
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
    given = _network(weights, model, base, folds, hard_mining, tune, format)
    wanted = tuple(name.strip() for item in texts(features) for name in item.split(",") if name.strip())
    if wanted and format == "ck":
        raise InvalidValue("`features` does not go with `format=ck`, whose features are fixed: leave one out")
    recipe = Recipe(
        kind=model or ("mlp" if given is not None else "gbdt" if base is None else base.manifest.kind),
        knobs={name: value for name, value in knobs.items() if value is not None},
        target=first or None,
        target_log=False if raw_target else None,
        folds=folds or Recipe.folds,
        seed=seed,
        threads=threads,
        hard_mining=hard_mining,
        tune=tune,
        features=wanted,
        rows=rows,
    )
    # An unknown kind or knob is refused before the data are read.
    Procedure(recipe).options()
    Procedure(recipe).tuned_knobs()
    conditions = (*row_conditions(where, software), *((NOT_SUSPECT,) if drop_suspect else ()))
    with spread_over(on, address) as spread, shown(progress) as show:
        return run(
            paths_of(data, family), place_of(out, "model"), recipe, family=family, where=conditions, pool=pool, warm_start=base,
            ck=tuple(others) if format == "ck" else None, no_folds=folds == 0, weights=given, spread=spread, progress=show,
        )  # fmt: skip


def _network(
    weights: str | Path | None, model: str | None, base: Model | None, folds: int | None, mining: int, tune: int, format: str
) -> Network | None:
    """The network that is given instead of being fitted; options that are about fitting do not go with it."""
    if weights is None:
        return None
    if model not in (None, "mlp"):
        raise InvalidValue(f"`weights` are those of an mlp, but `model` is {model}: leave one out")
    about = {"warm_start": base is not None, "folds": folds, "hard_mining": mining, "tune": tune, "format": format == "ck"}
    for name in (name for name, is_given in about.items() if is_given):
        raise InvalidValue(f"`{name}` is about fitting, and `weights` are taken as they are: leave one out")
    return read_network(given_path(weights, "`weights`: a folder of CSV files", "write one with `kerncast.export`"))


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
