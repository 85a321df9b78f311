"""Learners that are computed row by row, as tables: lines, and networks as a list of steps over buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerncast.compiling.blob.spaces import Tables, doubles, ints
from kerncast.compiling.lower import Artefact
from kerncast.errors import InvalidValue
from kerncast.learners.deep import Deep, DeepOptions, layout
from kerncast.learners.gbdt import Gbdt
from kerncast.learners.linear import Linear
from kerncast.learners.mlp import Mlp, Scaling
from kerncast.learners.roofline import Roofline

# The numbers that the runtime knows learners by.
KINDS: dict[type, int] = {Gbdt: 0, Roofline: 1, Linear: 2, Mlp: 3, Deep: 3}
# Buffers of a network, and the steps over them.
INPUT, A, B, D, RAW = range(5)
DENSE, ADD, COPY = range(3)


def refuse_unknown(artefact: Artefact) -> None:
    """Refuse a learner that the runtime does not know: one of another package writes C, and the runtime is fixed."""
    if type(artefact.model.learner) not in KINDS:
        raise InvalidValue(
            f"models of kind {artefact.model.manifest.kind} cannot be exported to a blob, whose runtime knows gbdt, roofline, "
            "linear, mlp and deep: export to C, or train another kind"
        )


def line_tables(artefact: Artefact, places: dict[str, int]) -> tuple[Tables, int]:
    """The lines of a linear model in the order of their keys, what a key reads, and the place of the size."""
    learner = artefact.model.learner
    assert isinstance(learner, Linear)
    found = learner.exported(artefact.model.family, places)
    return {
        "lines.keys": doubles(found.keys), "lines.lines": doubles(found.lines), "lines.reads": ints(found.reads),
    }, places[found.size]  # fmt: skip


class _Network:
    """The weights of a network, and its steps: operation, source, offset, rows, weights, bias, columns, rectify, target."""

    def __init__(self) -> None:
        self.weights: list[Any] = []
        self.count = 0
        self.steps: list[tuple[int, ...]] = []

    def _keep(self, weights: Any) -> int:
        if weights is None:
            return -1
        flat = np.asarray(weights, np.float64).ravel()
        self.weights.append(flat)
        self.count += len(flat)
        return self.count - len(flat)

    def dense(self, source: int, offset: int, weights: Any, bias: Any, rectify: bool, target: int) -> None:
        rows, columns = np.asarray(weights).shape
        first = self._keep(weights)
        self.steps.append((DENSE, source, offset, rows, first, self._keep(bias), columns, int(rectify), target))

    def move(self, operation: int, source: int, columns: int, target: int) -> None:
        self.steps.append((operation, source, 0, 0, 0, -1, columns, 0, target))


def network_tables(artefact: Artefact) -> tuple[Tables, int, tuple[float, float]]:
    """Scaling, steps and weights of an mlp or deep model; its outputs; and the middle and spread of what it predicts."""
    learner, network = artefact.model.learner, _Network()
    if isinstance(learner, Mlp):
        _mlp(learner, network)
        outputs = 1
    else:
        assert isinstance(learner, Deep)
        outputs = _deep(learner, network)
    middle, spread = (float(value) for value in learner.center_)
    tables = _scaling(learner.scaling_)
    tables["network.steps"] = ints(network.steps)
    tables["network.weights"] = doubles(np.concatenate(network.weights) if network.weights else ())
    return tables, outputs, (middle, spread)


def _scaling(scaling: Scaling) -> Tables:
    codes, wide = np.asarray(scaling.arrays["codes"]), np.asarray(scaling.arrays["wide"])
    plain, labelled = np.flatnonzero(codes[:, 0] < 0), np.flatnonzero(codes[:, 0] >= 0)
    coded = [(int(place), float(code)) for place in labelled for code in codes[place][codes[place] >= 0]]
    spread = np.column_stack([np.asarray(scaling.arrays[name])[plain] for name in ("mean", "deviation")])
    return {
        "scaling.plain": ints(np.column_stack([plain, wide[plain]])),
        "scaling.spread": doubles(spread),
        "scaling.coded": ints([place for place, _ in coded]),
        "scaling.codes": doubles([code for _, code in coded]),
    }


def _mlp(learner: Mlp, network: _Network) -> None:
    source, target = INPUT, A
    for number, (weights, bias) in enumerate(learner.layers_):
        last = number == len(learner.layers_) - 1
        network.dense(source, 0, weights, bias, number > 0, RAW if last else target)
        source, target = target, B if target == A else A


def _deep(learner: Deep, network: _Network) -> int:
    assert isinstance(learner.options, DeepOptions)
    weights, shape = learner.weights_, layout(learner.scaling_, learner.options)
    network_in = np.asarray(weights["plain"]).reshape(shape.plain, shape.widths[0])
    network.dense(INPUT, 0, network_in, weights["bias"], False, A)
    for place, (start, _) in enumerate(shape.categorical):
        network.dense(INPUT, start, weights[f"embedding{place}"], None, False, B)
        network.dense(B, 0, weights[f"mixing{place}"], None, False, D)
        network.move(ADD, D, shape.widths[0], A)
    for stage, columns in enumerate(shape.widths):
        if stage:
            network.dense(A, 0, weights[f"stage{stage}"], weights[f"stage{stage}_bias"], True, B)
            network.move(COPY, B, columns, A)
        for block in range(shape.blocks):
            name = f"block{stage}_{block}"
            network.dense(A, 0, weights[f"{name}_in"], weights[f"{name}_in_bias"], True, B)
            network.dense(B, 0, weights[f"{name}_out"], weights[f"{name}_out_bias"], True, D)
            network.move(ADD, D, columns, A)
    network.dense(A, 0, weights["head"], weights["head_bias"], True, RAW)
    return int(np.asarray(weights["head"]).shape[1])
