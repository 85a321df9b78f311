"""`kerncast.update`: learn from what was measured since, and replace the model if that makes it no worse."""

from __future__ import annotations

from pathlib import Path

from kerncast.api.measured import Data, paths_of
from kerncast.api.showing import Wanted, shown
from kerncast.evaluating.compare import Limits
from kerncast.evaluating.unseen import open_all
from kerncast.inductor.observed_log import FOLDER
from kerncast.inductor.observed_rows import gather
from kerncast.models.model import Model
from kerncast.regenerating.updating import Updated
from kerncast.regenerating.updating import update as run
from kerncast.store.store import Store


def update(
    model: Model | str | Path,
    data: Data,
    *,
    out: str | Path | None = None,
    store: Store | str | Path | None = None,
    pool: bool = False,
    max_mean: float = 0.5,
    max_median: float = 0.5,
    max_p10: float = 2.0,
    max_problem: float = 10.0,
    seed: int = 0,
    threads: int = 0,
    dry_run: bool = False,
    progress: Wanted = "auto",
) -> Updated:
    """Continue a model with the rows of `data` that it has not learned from; the result replaces it if BETTER or SAME.

    `model` is a model, its directory, or an id in the store. It is judged on held-out problems of the new data and on the old
    data, by the limits of `compare`. The old model is kept as `MODEL.previous` (in the store: under that name); with `out` it
    stays, and the new one is written there. `pool` also learns from rows of another backend, software or cache state, whose
    times are scaled to the model's; what torch.compile timed with the model's software is learned from without it. With
    `dry_run` nothing is trained or written, and the result says what would be learned.
    """
    opened = store if isinstance(store, Store) else Store.open(store)
    limits = Limits(max_mean / 100, max_median / 100, max_p10 / 100, max_problem / 100)
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
