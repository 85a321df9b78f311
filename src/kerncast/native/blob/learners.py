"""Learners that are computed row by row, as tables: lines, and networks as a list of steps over buffers."""

from __future__ import annotations

from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Level, Lines, Network
from kerncast.native.blob.spaces import Tables, doubles, ints
from kerncast.native.c_learners import scaling_columns
from kerncast.native.lower import Artefact

# The numbers that the runtime knows learners by.
KINDS: dict[type, int] = {Boosted: 0, Level: 1, Lines: 2, Network: 3}


def refuse_unknown(artefact: Artefact) -> None:
    """Refuse a learner that the runtime does not know: one of another package writes C, and the runtime is fixed."""
    if artefact.lowered is None:
        raise InvalidValue(
            f"models of kind {artefact.model.manifest.kind} cannot be exported to a blob, whose runtime knows gbdt, roofline, "
            "linear, mlp and deep: export to C, or train another kind"
        )


def line_tables(lines: Lines) -> Tables:
    """The lines in the order of their keys, and what a key reads."""
    return {"lines.keys": doubles(lines.keys), "lines.lines": doubles(lines.lines), "lines.reads": ints(lines.reads)}


def network_tables(network: Network) -> Tables:
    """Scaling, steps and weights."""
    plain, spread, coded = scaling_columns(network)
    return {
        "scaling.plain": ints(plain),
        "scaling.spread": doubles(spread),
        "scaling.coded": ints([place for place, _ in coded]),
        "scaling.codes": doubles([code for _, code in coded]),
        "network.steps": ints(network.steps),
        "network.weights": doubles(network.weights),
    }
