"""A decision diagram of the points that exist in a product of parameters: small, exact, and usable as an expression.

A file of measurements lists its configs but not the rules behind them. Written as a list they would be slow to
check and impossible to export. The diagram reads one parameter after another: layer i has a row per state, with
the next state for each value of parameter i. States with the same future are merged, so a set of points that follows
rules ("at most 1,024 threads") takes a few rows per layer, whatever the number of points.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kerncast.core.expr import ConstantTable, Expr, lookup
from kerncast.core.expr.nodes import Operand
from kerncast.errors import InvalidValue

Layers = tuple[tuple[tuple[int, ...], ...], ...]

DEAD = -1
DEAD_TEXT = "."


def diagram_of(points: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Layers:
    """The diagram of some points, each given by the index of its value of every parameter."""
    ordered = sorted(set(points))
    if not ordered:
        raise InvalidValue("a space needs at least one point")
    rows: list[dict[tuple[int, ...], int]] = [{} for _ in sizes]

    def state(low: int, high: int, depth: int) -> int:
        """The state of the points ordered[low:high], which agree in their first `depth` indices."""
        if depth == len(sizes):
            return 0
        prefix, row = ordered[low][:depth], [DEAD] * sizes[depth]
        while low < high:
            index = ordered[low][depth]
            end = bisect_left(ordered, (*prefix, index + 1), low, high)
            row[index] = state(low, end, depth + 1)
            low = end
        return rows[depth].setdefault(tuple(row), len(rows[depth]))

    state(0, len(ordered), 0)
    return tuple(tuple(layer) for layer in rows)


def points_of(layers: Layers) -> Iterator[tuple[int, ...]]:
    """The points of a diagram, in ascending order."""

    def walk(depth: int, state: int, point: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if depth == len(layers):
            yield point
            return
        for index, following in enumerate(layers[depth][state]):
            if following != DEAD:
                yield from walk(depth + 1, following, (*point, index))

    yield from walk(0, 0, ())


def is_everything(layers: Layers) -> bool:
    """Whether every combination exists, so that there is nothing to check."""
    return all(DEAD not in row for layer in layers for row in layer)


def written(layers: Layers) -> tuple[tuple[str, ...], ...]:
    """The diagram as JSON stores it: a short text per row, so that people can read it."""
    return tuple(tuple(" ".join(DEAD_TEXT if item == DEAD else str(item) for item in row) for row in layer) for layer in layers)


def read(texts: Sequence[Sequence[str]], sizes: Sequence[int]) -> Layers:
    """The diagram from its texts; inconsistent ones are refused."""
    try:
        layers = tuple(tuple(tuple(DEAD if item == DEAD_TEXT else int(item) for item in row.split()) for row in layer)
                       for layer in texts)  # fmt: skip
    except ValueError as error:
        raise InvalidValue(f"a row of the diagram of configs is not a list of states ({error})") from error
    following = [len(layer) for layer in layers[1:]] + [1]
    fits = len(layers) == len(sizes) and (not layers or len(layers[0]) == 1)
    for layer, size, states in zip(layers, sizes, following, strict=False):
        fits = fits and all(len(row) == size and all(DEAD <= item < states for item in row) for row in layer)
        fits = fits and all(any(item != DEAD for item in row) for row in layer)
    if not fits:
        raise InvalidValue("the diagram of configs does not fit the declared parameters")
    return layers


def alive(layers: Layers, indices: Sequence[Operand]) -> list[Expr]:
    """For each number of parameters from one to all: whether some point begins with these indices."""
    found: list[Expr] = []
    state: Operand = 0
    for depth, (layer, index) in enumerate(zip(layers, indices, strict=True)):
        dead = len(layers[depth + 1]) if depth + 1 < len(layers) else 1
        # One more row: a dead state stays dead.
        rows = [[dead if item == DEAD else item for item in row] for row in layer] + [[dead] * len(layer[0])]
        state = lookup(ConstantTable.of(rows), state, index)
        found.append(state < dead)
    return found
