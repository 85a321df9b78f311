"""`kerncast.update`: learn from what was measured since, and replace the model if that makes it no worse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.api.measured import paths_of
from kerncast.api.parameters import Datasets, StoreOf
from kerncast.api.showing import Wanted, shown
from kerncast.errors import InvalidValue
from kerncast.evaluating.compare import LIMITS, Limits
from kerncast.evaluating.unseen import open_all
from kerncast.inductor.observed_log import FOLDER
from kerncast.inductor.observed_rows import gather
from kerncast.models.model import Model
from kerncast.regenerating.updating import Updated
from kerncast.regenerating.updating import update as run
from kerncast.store.store import Store
from kerncast.writing.help import Help


def update(
    model: Annotated[Model | str | Path, Help(metavar="MODEL", names="stored_models")],
    data: Datasets,
    *,
    out: Annotated[str | Path | None, Help("Write the new model there, and leave MODEL as it is.", metavar="DIR")] = None,
    replace: Annotated[bool, Help("Replace MODEL if the new one is not worse; it is kept as MODEL.previous.")] = False,
    pool: Annotated[
        bool,
        Help(
            "Also use rows of another backend, software or cache state, scaled to the model's. What torch.compile timed with "
            "the model's software is used without it."
        ),
    ] = False,
    limits: Limits = LIMITS,
    seed: Annotated[int, Help("Seed of the hold-out and the training.", least=0)] = 0,
    threads: Annotated[int, Help("Cores to train with. [default: all]", least=0)] = 0,
    dry_run: Annotated[bool, Help("Say what would be learned; train and write nothing.")] = False,
    store: StoreOf = None,
    progress: Wanted = "auto",
) -> Updated:
    """Continue a model with the rows of `data` that it has not learned from, and keep the result if it is BETTER or SAME.

    `model` is a model, its directory, or an id in the store. It is judged on held-out problems of the new data and on the old
    data, by the limits of `compare`. The new model is written to `out`, or takes the place of the old one with `replace`; then
    the old one is kept as `MODEL.previous` (in the store: under that name). `pool` also learns from rows of another backend,
    software or cache state, whose times are scaled to the model's; what torch.compile timed with the model's software is
    learned from without it. With `dry_run` nothing is trained or written, and the result says what would be learned.
    """
    if not dry_run and replace is (out is not None):
        raise InvalidValue("say where the new model goes: a folder as `out`, or the place of the old one with `replace`")
    opened = store if isinstance(store, Store) else Store.open(store)
    place = None if out is None else Path(out)
    paths = paths_of(data)
    for path in paths:
        if not dry_run and (path / FOLDER).is_dir():
            gather(path)  # what processes recorded that were killed
    with shown(progress) as show:
        return run(
            model, open_all(paths), opened, out=place, pool=pool, limits=limits, seed=seed, threads=threads,
            dry_run=dry_run, progress=show,
        )  # fmt: skip
