"""Tensors to convolve, and what must come out: small integers, so that every sum is exact and the check is bit for bit."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from kerncast.core.arrays import Array
from kerncast.measuring.backends.contract import OutOfMemory
from kerncast.measuring.backends.cpu.arena import Arena
from kerncast.measuring.backends.cpu.gemm.inputs import (
    CACHED_BYTES,
    EXACT,
    LARGEST_VALUES,
    NUMPY_TYPES,
    Inputs,
    refuse_too_large,
)

# What is read and made, in the order of `Inputs`.
TENSORS = {
    "forward": ("input", "weights", "output"),
    "bwd_data": ("output", "weights", "input"),
    "bwd_weight": ("input", "output", "weights"),
}
AXES = "dhw"


def shapes(p: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """How each tensor of a problem is stored."""
    size, taps = (p["Di"], p["Hi"], p["Wi"]), (p["Z"], p["Y"], p["X"])
    made = tuple(
        (i + 2 * p[f"pad_{axis}"] - (t - 1) * p[f"dilation_{axis}"] - 1) // p[f"stride_{axis}"] + 1
        for i, t, axis in zip(size, taps, AXES, strict=True)
    )
    inner = p["C"] // p["G"]
    if p["layout"] == "nhwc":
        return {"input": (p["N"], *size, p["C"]), "weights": (p["K"], *taps, inner), "output": (p["N"], *made, p["K"])}
    return {"input": (p["N"], p["C"], *size), "weights": (p["K"], inner, *taps), "output": (p["N"], p["K"], *made)}


def reference(direction: str, p: Mapping[str, Any], first: Array, second: Array) -> Array:
    """What a direction makes of its two operands, tap by tap, each a product of matrices for every group."""
    known = shapes(p)
    source, other, made = TENSORS[direction]
    tensors = {source: first, other: second, made: np.zeros(known[made], first.dtype)}
    last = {name: tensor if p["layout"] == "nhwc" else np.moveaxis(tensor, 1, -1) for name, tensor in tensors.items()}
    groups, pads = p["G"], [p[f"pad_{axis}"] for axis in AXES]
    image = np.pad(last["input"], [(0, 0), *((pad, pad) for pad in pads), (0, 0)])
    image = image.reshape(*image.shape[:-1], groups, -1)
    output = last["output"].shape[:-1]
    # Groups first, then rows of pixels and columns of channels.
    made_rows = np.ascontiguousarray(np.moveaxis(last["output"].reshape(-1, groups, p["K"] // groups), 1, 0))
    weights = last["weights"].reshape(groups, p["K"] // groups, *last["weights"].shape[1:])
    found = np.zeros_like(weights)
    for tap in itertools.product(*(range(p[name]) for name in "ZYX")):
        place = tuple(
            slice(
                t * p[f"dilation_{axis}"],
                t * p[f"dilation_{axis}"] + (count - 1) * p[f"stride_{axis}"] + 1,
                p[f"stride_{axis}"],
            )
            for t, axis, count in zip(tap, AXES, output[1:], strict=True)
        )
        window = image[(slice(None), *place)]
        rows = np.ascontiguousarray(np.moveaxis(window.reshape(-1, groups, p["C"] // groups), 1, 0))
        at: tuple[slice | int, ...] = (slice(None), slice(None), *tap)
        part = np.ascontiguousarray(weights[at])
        if direction == "forward":
            made_rows += rows @ part.transpose(0, 2, 1)
        elif direction == "bwd_data":
            window += np.moveaxis(made_rows @ part, 0, 1).reshape(window.shape)
        else:
            found[at] = made_rows.transpose(0, 2, 1) @ rows
    if direction == "forward":
        result = np.moveaxis(made_rows, 0, 1).reshape(last["output"].shape)
    elif direction == "bwd_data":
        inside = tuple(slice(pad, pad + size) for pad, size in zip(pads, last["input"].shape[1:-1], strict=True))
        result = image[(slice(None), *inside)].reshape(last["input"].shape)
    else:
        result = found.reshape(last["weights"].shape)
    return np.ascontiguousarray(result if p["layout"] == "nhwc" else np.moveaxis(result, -1, 1))


def make(direction: str, p: Mapping[str, Any]) -> Inputs:
    """The operands of a problem: always the same for the same problem."""
    known, dtype = shapes(p), np.dtype(NUMPY_TYPES[p["dtype"]])
    counts = {name: int(np.prod(shape, dtype=np.int64)) for name, shape in known.items()}
    # Besides the operands: whole numbers, copies with a border, copies by groups, and the product of a tap.
    needed = dtype.itemsize * (4 * counts["input"] + 4 * counts["output"] + 3 * counts["weights"])
    refuse_too_large(needed, "tensors")
    key = (direction, *(value for name, value in p.items() if name not in ("dtype", "threads")))
    seed = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    taps = p["Z"] * p["Y"] * p["X"]
    summed = {
        "forward": p["C"] // p["G"] * taps,
        "bwd_data": p["K"] // p["G"] * taps,
        "bwd_weight": counts["output"] // p["K"],
    }[direction]
    bound = LARGEST_VALUES[p["dtype"]] if LARGEST_VALUES[p["dtype"]] ** 2 * summed < EXACT[p["dtype"]] else 1
    names = TENSORS[direction]
    try:
        sizes = [counts[name] * dtype.itemsize for name in names]
        arena = Arena(sizes[:2], sizes[2], sizes[2:])
        first, second = (arena.operand(known[name], dtype) for name in names[:2])
        result = arena.result(known[names[2]], dtype)
        for operand in (first, second):
            operand[...] = rng.integers(-bound, bound + 1, operand.shape, np.int8)
        made = Inputs(first, second, result, arena.keep(reference(direction, p, first, second)), arena)
        arena.seal()
        return made
    except (MemoryError, OSError) as error:
        raise OutOfMemory(f"the tensors need {needed / 1e9:.1f} GB: {error}") from error


class InputCache:
    """The operands of the problems used last, bounded by bytes; what a prepared kernel holds stays alive anyway."""

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self.limit = limit
        self._kept: OrderedDict[tuple[Any, ...], Inputs] = OrderedDict()

    def get(self, direction: str, problem: Mapping[str, Any]) -> Inputs:
        """The operands of a problem; the number of threads makes no difference."""
        key = (direction, *(value for name, value in problem.items() if name != "threads"))
        if key not in self._kept:
            self._kept[key] = make(direction, problem)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(item.nbytes for item in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return self._kept[key]
