"""`kerncast.open`: open whatever is at a path."""

from __future__ import annotations

from pathlib import Path

from kerncast.answering import compiled as compiled
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.data.dataset import Dataset
from kerncast.errors import KerncastError, NotFound
from kerncast.measuring.sweeping import Vectors
from kerncast.measuring.sweeping.files import MANIFEST as VECTORS
from kerncast.models.model import Model, is_model
from kerncast.models.store.entry import Entry
from kerncast.models.store.store import Store


def open(path: str | Path) -> Dataset | Model | Store | Vectors:
    """Open a dataset, a model (CK Tile's layout too), written vectors or a store of models; the files say which it is.

    The id of a model in your store, or of one that ships with kerncast (`shipped/gemm-vllm`), opens that model.
    """
    place = Path(path)
    if (place / DATASET).is_file():
        return Dataset.open(place)
    if is_model(place):
        return Model.load(place)
    if (place / VECTORS).is_file():
        return Vectors.open(place)
    if place.is_dir() and next(place.glob("*/*/*/*/*/entry.json"), None) is not None:
        return Store.open(place)
    if (entry := _entry(str(path))) is not None:
        return entry.load()
    if not place.exists():
        raise NotFound(f"there is nothing at {place}: check the path, or see `kerncast models` for the ids of models")
    raise NotFound(
        f"{place} is not a kerncast dataset, model, sweep or store: read another program's table with `kerncast.read`"
    )


def _entry(name: str) -> Entry | None:
    """The model with just this id; a part of an id is enough for the store, but here it may as well be a mistyped path."""
    try:
        found = Store.open().get(name)
    except KerncastError:
        return None
    return found if found.id == name else None
