"""The load of a reshard on the network of a Wormhole chip, per tile; it depends only on grids and strategies.

Each destination core reads its shard in the order of its pages, row by row: the first half over network 0, the second
half over network 1, all cores at once. Cores sit on a torus of 10 × 12 routers, Tensix cores in columns 1-4 and 6-9 and
in rows 1-5 and 7-11. Network 0 carries data east, then south; network 1 north, then west.
https://github.com/tenstorrent/tt-isa-documentation (WormholeB0/NoC), and the generic reshard of
https://github.com/tenstorrent/tt-metal for which core reads what.

The numbers take a minute and a half to compute, so they ship as `reshard_noc.npz`, written by

    python releasing/reshard_noc.py src/kerncast/library/ops/reshard_noc.npz
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Floats, Ints
from kerncast.library.ops.reshard import GRID, NAMES

STRATEGIES = 3  # block, width, height, as the op codes them
TORUS = (10, 12)
COLUMNS = np.array([1, 2, 3, 4, 6, 7, 8, 9])
ROWS = np.array([1, 2, 3, 4, 5, 7, 8, 9])
NETWORKS = (0, 1)
# A core sends and receives 28.1 bytes per cycle where a link carries 30, so its load weighs that much more.
CORE_WEIGHT = 30.0 / 28.1
# Moments at which the streams are sampled: rows down half a shard, and columns along a row.
MOMENTS = (4, 6)

Grid = tuple[int, int]


def parts(strategy: int, grid: Grid) -> tuple[int, int]:
    """The numbers of rows and columns of shards of a tensor; shards are assigned to cores row by row."""
    x, y = grid
    return ((y, x), (1, x * y), (x * y, 1))[strategy]


def _hops(network: int) -> tuple[Ints, Ints]:
    """Steps along x and y from each core (of 64) to each other."""
    x, y = COLUMNS[np.arange(GRID**2) % GRID], ROWS[np.arange(GRID**2) // GRID]
    sign = 1 if network == 0 else -1
    return (sign * (x[None, :] - x[:, None])) % TORUS[0], (sign * (y[None, :] - y[:, None])) % TORUS[1]


@cache
def routes(network: int) -> npt.NDArray[np.float32]:
    """Which of the 240 links the route from each core to each other uses: [source, destination, link]."""
    across, along = TORUS
    used = np.zeros((GRID**2, GRID**2, 2, along, across), np.float32)
    step = 1 if network == 0 else -1
    steps_x, steps_y = _hops(network)
    for source, target in product(range(GRID**2), repeat=2):
        x, y = int(COLUMNS[source % GRID]), int(ROWS[source // GRID])
        to_x, to_y = int(COLUMNS[target % GRID]), int(ROWS[target // GRID])
        # Network 0 turns where the source's row meets the destination's column, network 1 at the other corner.
        row, column = (y, to_x) if network == 0 else (to_y, x)
        used[source, target, 0, row, (x + step * np.arange(steps_x[source, target])) % across] = 1
        used[source, target, 1, (y + step * np.arange(steps_y[source, target])) % along, column] = 1
    return used.reshape(GRID**2, GRID**2, -1)


def _cores(shards: Ints, grid: Grid) -> Ints:
    """The positions on the full grid of the cores that hold some shards."""
    return (shards // grid[0]) * GRID + shards % grid[0]


def _overlap(pieces: int, cuts: int) -> Floats:
    """How much of a unit length each of `pieces` equal parts has in common with each of `cuts` equal parts."""
    a, b = np.arange(pieces + 1) / pieces, np.arange(cuts + 1) / cuts
    shared: Floats = np.minimum(a[1:, None], b[None, 1:]) - np.maximum(a[:-1, None], b[None, :-1])
    return np.maximum(shared, 0.0)


def flows(strategies: tuple[int, int], grids: tuple[Grid, Grid], network: int) -> Floats:
    """The share of the tensor that each core sends to each other over one network: [source, destination]."""
    (in_rows, in_columns), (out_rows, out_columns) = (parts(s, g) for s, g in zip(strategies, grids, strict=True))
    rows = _overlap(in_rows, 2 * out_rows)[:, network::2]  # the upper halves of the shards, or the lower
    columns = _overlap(in_columns, out_columns)
    shares = np.einsum("ab,cd->acbd", rows, columns).reshape(in_rows * in_columns, out_rows * out_columns)
    found = np.zeros((GRID**2, GRID**2))
    sources, targets = (_cores(np.arange(g[0] * g[1]), g) for g in grids)
    found[np.ix_(sources, targets)] = shares
    return found


def streams(strategies: tuple[int, int], grids: tuple[Grid, Grid], network: int) -> tuple[Ints, Ints]:
    """The source core of each destination [moment down the shard, moment along the row, destination]; the destinations."""
    (in_rows, in_columns), (out_rows, out_columns) = (parts(s, g) for s, g in zip(strategies, grids, strict=True))
    shard = np.arange(out_rows * out_columns)
    down = (network + (np.arange(MOMENTS[0]) + 0.5) / MOMENTS[0]) / 2
    along = (np.arange(MOMENTS[1]) + 0.5) / MOMENTS[1]
    row = np.floor((shard // out_columns + down[:, None]) * in_rows / out_rows).astype(np.int64)
    column = np.floor((shard % out_columns + along[:, None]) * in_columns / out_columns).astype(np.int64)
    return _cores(row[:, None, :] * in_columns + column[None, :, :], grids[0]), _cores(shard, grids[1])


def _steady(strategies: tuple[int, int], grids: tuple[Grid, Grid], network: int) -> float:
    """The load of the busiest link or core if every stream flowed evenly all the time."""
    share = flows(strategies, grids, network)
    sent = np.nonzero(share)
    link = (share[sent] @ routes(network)[sent]).max()
    return float(max(link, CORE_WEIGHT * share.sum(1).max(), CORE_WEIGHT * share.sum(0).max()))


def _moments(source: Ints, target: Ints, network: int) -> tuple[float, float, float]:
    """Loads if destinations stay in step, averaged over a row and not averaged; and how many streams one meets."""
    count = len(target)
    ways = routes(network)[source, target]  # [down, along, destination, link]
    links = ways.sum(2)
    cores = (source[..., None] == np.arange(GRID**2)).sum(2)
    load = np.concatenate([links, CORE_WEIGHT * cores], axis=2) / (2 * count)
    met = np.einsum("rcdl,rcl->rcd", ways, links) - ways.sum(3)
    even = CORE_WEIGHT / (2 * count)
    rows, moments = load.mean(1).max(1), load.max(2)
    return float(np.maximum(rows, even).mean()), float(np.maximum(moments, even).mean()), float(met.mean())


def _rings(source: Ints, target: Ints, network: int) -> list[float]:
    """The fullest x ring and y ring, the most streams on any, and the most that wrap around an x and a y ring."""
    steps_x, steps_y = (steps[source, target] for steps in _hops(network))
    target = np.broadcast_to(target, source.shape)
    near, far = (source, target) if network == 0 else (target, source)
    found = []
    # Network 0 runs along the source's row, then down the destination's column; network 1 the other way round.
    for ring, steps, size, sent in (
        (near // GRID, steps_x, TORUS[0], target % GRID - source % GRID),
        (far % GRID, steps_y, TORUS[1], target // GRID - source // GRID),
    ):
        member = (ring[..., None] == np.arange(GRID)) / (2 * source.shape[2])
        backwards = sent < 0 if network == 0 else sent > 0
        of = [np.einsum("rcdg,rcd->rg", member, kind) / MOMENTS[1] for kind in (steps / size, steps > 0, backwards)]
        found.append([float(each.max(1).mean()) for each in of])
    full, streams_on, wraps = zip(*found, strict=True)
    return [*full, max(streams_on), *wraps]


def loads(strategies: tuple[int, int], grids: tuple[Grid, Grid]) -> tuple[float, ...]:
    """`NAMES` for one pair of shardings, each the worse of the two networks."""
    each = []
    for network in NETWORKS:
        source, target = streams(strategies, grids, network)
        row_by_row, at_once, queue = _moments(source, target, network)
        each.append((_steady(strategies, grids, network), row_by_row, at_once, *_rings(source, target, network), queue))
    return tuple(np.max(each, axis=0).tolist())


def rounded(values: npt.ArrayLike) -> Floats:
    """Round to eleven bits of mantissa: more precise than the inputs, and it keeps text and files small."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.round(mantissa * 2048.0) / 2048.0, exponent)


def build() -> Floats:
    """Every table: [name, in strategy, out strategy, in x, in y, out x, out y]."""
    sides = [(x, y) for x in range(1, GRID + 1) for y in range(1, GRID + 1)]
    found = [loads((a, b), (i, o)) for a in range(STRATEGIES) for b in range(STRATEGIES) for i in sides for o in sides]
    return rounded(np.array(found).T.reshape(len(NAMES), STRATEGIES, STRATEGIES, GRID, GRID, GRID, GRID))


if __name__ == "__main__":
    tables = build()
    np.savez_compressed(sys.argv[1], **{name: tables[place].astype(np.float32) for place, name in enumerate(NAMES)})
