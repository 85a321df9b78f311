"""Active collecting: each round measures the vectors that are worth most, judged by the results of earlier rounds.

The first round is drawn at random, spread over the problems. Later rounds depend only on the rows, so the same
command continues a killed collection, and a finished one can be extended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.data import schema
from kerncast.measuring.collection import Active, Collection
from kerncast.measuring.scheduling import Crew

# The first round: the larger of this share and this many vectors per problem, but at most half of the limit.
FIRST_SHARE = 0.05
FIRST_PER_PROBLEM = 2
# A later round is a twentieth of the vectors or a tenth of the limit, because each round trains a model.
ROUND_SHARE, ROUND_OF_LIMIT = 0.05, 0.1
# Candidates are held in memory with their keys: at most this many, drawn at random if there are more.
MOST_CANDIDATES = 200_000


def measure_rounds(active: Active, collection: Collection, crew: Crew, blocks: Iterable[pl.DataFrame], device: Device) -> bool:
    """Measure until the limit is reached; False when the budget (or Ctrl-C) ended it earlier."""
    vectors = _distinct(collection, blocks)
    summary = collection.summary
    rest = np.flatnonzero(~collection.labels.done(vectors["key"]))
    summary.already_there = vectors.height - len(rest)
    limit = min(active.max_vectors or vectors.height, vectors.height)
    first = _first_round(vectors, limit, active.seed)
    least = collection.request.chunk_size * len(collection.request.devices)
    size = max(least, min(math.ceil(ROUND_SHARE * vectors.height), math.ceil(ROUND_OF_LIMIT * limit)))
    finished, number = not collection.stop(), 0
    while finished and (left := limit - (vectors.height - len(rest))) > 0:
        number += 1
        chosen = first[np.isin(first, rest)]
        if not len(chosen):
            chosen = _wanted(active, collection, vectors, rest, device)[:size]
        # In the order of the sweep, which keeps the vectors of one problem together.
        chosen = np.sort(chosen[:left])
        rest = np.setdiff1d(rest, chosen, assume_unique=True)
        collection.progress.expect(f"vectors of round {number}", len(chosen))
        finished = crew.run(collection.chunks([vectors[chosen].drop("key")]), collection.stop)
    summary.left_out = vectors.height - summary.already_there - summary.statuses.total()
    return finished


def _distinct(collection: Collection, blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The vectors with their keys, each once; a share of them, drawn by their hash, if there are too many to hold."""
    family = collection.request.family
    columns = list(schema.parameter_columns(family))
    share = MOST_CANDIDATES / max(MOST_CANDIDATES, collection.total or 0)
    found = []
    for block in blocks:
        if collection.stop():
            break
        vectors = block.select(columns)
        if share < 1:
            vectors = vectors.filter(vectors.hash_rows(seed=0) < int(share * 2**64))
        found.append(vectors.with_columns(schema.row_keys(family, vectors.with_columns(device=pl.lit(collection.device)))))
    if not found:
        types = schema.schema_of(family)
        return pl.DataFrame(schema={name: types[name] for name in (*columns, "key")})
    return pl.concat(found).unique("key", keep="first", maintain_order=True)


def _first_round(vectors: pl.DataFrame, limit: int, seed: int) -> Ints:
    """One vector of each problem, then another of each, and so on, drawn by the seed."""
    columns = [name for name in vectors.columns if name.startswith("problem.")]
    problem = np.unique(vectors.select(columns).hash_rows(seed=0).to_numpy(), return_inverse=True)[1]
    chance = np.random.default_rng(seed).random(vectors.height)
    order = np.lexsort((chance, problem))
    starts = np.flatnonzero(np.diff(problem[order], prepend=-1))
    place = np.empty(vectors.height, dtype=np.int64)
    place[order] = np.arange(vectors.height) - np.repeat(starts, np.diff(starts, append=vectors.height))
    size = max(math.ceil(FIRST_SHARE * vectors.height), int((place < FIRST_PER_PROBLEM).sum()))
    return np.lexsort((chance, place))[: min(size, math.ceil(limit / 2))]


def _wanted(active: Active, collection: Collection, vectors: pl.DataFrame, rest: Ints, device: Device) -> Ints:
    """The vectors that are left, alternating the worthiest and a random one; all random while too little is known."""
    shuffled = np.random.default_rng([active.seed, len(rest)]).permutation(rest)
    candidates = np.sort(shuffled[:MOST_CANDIDATES])
    worth = active.worth(collection.rows(), vectors[candidates].drop("key"), device)
    if worth is None:
        return shuffled
    return by_turns(candidates[np.argsort(-worth, kind="stable")], shuffled)


def by_turns(worthiest: Ints, shuffled: Ints) -> Ints:
    """Alternate between the two, each position once.

    A model that saw only the fastest rows knows little about slow ones. On other problems it then chooses worse than a
    model that saw random rows (`kerncast evaluate --budget-curve` shows both).
    """
    mixed = np.column_stack([worthiest, shuffled[: len(worthiest)]]).ravel()
    return np.asarray(mixed[np.sort(np.unique(mixed, return_index=True)[1])])
