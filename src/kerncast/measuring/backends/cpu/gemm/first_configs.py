"""Which configs to try first when nothing is known: those that a textbook would choose, from the family's quick set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Config
from kerncast.library.families.gemm_cpu import WEIGHTS, config_set, gemm_cpu

# From this many rows on, copying both operands into strips pays. Below, B is read about once, and a copy doubles that.
MANY_ROWS = 32
UNLIKELY, LESS_LIKELY = 0.5, 0.75
# Depth of a block: shorter ones pass over C too often, longer ones leave L1. Dot products keep nothing there.
GOOD_DEPTH, GOOD_DEPTH_DOT = (128, 512), (512, 2048)


def first_configs(problem: Mapping[str, Any], device: Device) -> list[Config]:
    """The quick set for a problem, promising configs first."""
    rows = 1 if problem["N"] == 1 else int(problem["M"])
    found = config_set("quick", problem, device).to_dicts()
    found.sort(key=lambda config: -_promise(config, rows))
    return [Config.trusted(gemm_cpu, config) for config in found]


def _promise(config: Mapping[str, Any], rows: int) -> float:
    mr, nv = min(config["mr"], rows), config["nv"]
    promise: float = mr * nv / (mr + nv) * config["vector_bytes"] * WEIGHTS["kernel"][config["kernel"]]
    many = rows >= MANY_ROWS
    if config["kernel"] == "outer":
        promise *= (1.0 if config["pack_b"] == many else UNLIKELY) * (1.0 if config["pack_a"] == many else UNLIKELY)
    elif config["kernel"] == "dot":
        promise *= LESS_LIKELY if many else 1.0
    shallow, deep = GOOD_DEPTH_DOT if config["kernel"] == "dot" else GOOD_DEPTH
    if not shallow <= config["kc"] <= deep:
        promise *= UNLIKELY
    return promise * (UNLIKELY if config["mr"] > rows else 1.0)
