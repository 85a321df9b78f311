"""The networks that benchmarks/inductor.py compiles, and torch-diode's network for the comparison."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "torch_compile"))
from transformer_block import Block

# torch-diode's first model: 7 inputs of the problem, 5 of the config, six layers of 256 with batch norm.
WIDTH, LAYERS, EPOCHS = 256, 6, 60
ELEMENT_BITS = {"fp32": 32, "bf16": 16}


def layers(*sizes: int, last: Callable[[], torch.nn.Module] | None = None) -> torch.nn.Module:
    parts: list[torch.nn.Module] = []
    for inner, outer in pairwise(sizes):
        parts += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1], *([last()] if last else []))


def networks() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """Each with an input. The last is the upper half of a recommender: a few hundred users, then ever narrower layers."""
    torch.manual_seed(0)
    return {
        "transformer block, 16 tokens of 512": (Block(512, 8).eval(), torch.randn(1, 16, 512)),
        "MLP of three layers, 32 rows": (layers(512, 1024, 1024, 256).eval(), torch.randn(32, 512)),
        "recommender's MLP, 128 rows": (layers(480, 512, 256, 64, 1, last=torch.nn.Sigmoid).eval(), torch.randn(128, 480)),
    }


def three_products() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return layers(512, 768, 512, 256).eval(), torch.randn(24, 512)


def encode(rows: pl.DataFrame) -> np.ndarray[Any, Any]:
    """torch-diode's twelve inputs, each as a logarithm: bits, M, N, K, GB, GFLOP, FLOP per byte, and five of the config.

    A tile has no stages and warps; the rows of a cache block and the division among threads take their places.
    """
    m, n, k = (rows[f"problem.{name}"].cast(pl.Float64).to_numpy() for name in "MNK")
    bits = rows["problem.dtype"].replace_strict(ELEMENT_BITS, return_dtype=pl.Float64).to_numpy()
    flops, size = 2 * m * n * k, (m * k + k * n + m * n) * bits / 8
    split = rows["config.split"].replace_strict({"default": 1, "m": 2, "n": 3, "k": 4}, return_dtype=pl.Float64).to_numpy()
    config = [rows[f"config.{name}"].cast(pl.Float64).to_numpy() + (name in ("kc", "mc")) for name in ("kc", "mr", "nr", "mc")]
    return np.log(np.stack([bits, m, n, k, size / 1e9, flops / 1e9, flops / size, *config, split], axis=1))


def train_diode(rows: pl.DataFrame, seed: int = 0) -> Callable[[pl.DataFrame], np.ndarray[Any, Any]]:
    """torch-diode's network and loss on rows with tiles; it has no input for ATen's kernel, so that is left out, as there."""
    torch.manual_seed(seed)
    inputs, target = encode(rows), np.log(rows["time_ns"].to_numpy() / 1e6)
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    parts: list[torch.nn.Module] = []
    for number in range(LAYERS):
        width = inputs.shape[1] if number == 0 else WIDTH
        parts += [torch.nn.Linear(width, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU()]
    network = torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, 1))
    overhead = torch.tensor(math.log(0.00541))
    x = torch.tensor((inputs - mean) / spread, dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
        for batch in order.split(256):
            if len(batch) < 2:
                continue
            optimizer.zero_grad()
            guess = torch.logaddexp(network(x[batch]).squeeze(1), overhead)
            torch.nn.functional.mse_loss(guess, y[batch]).backward()
            optimizer.step()
    network.eval()

    def predict(asked: pl.DataFrame) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            scaled = torch.tensor((encode(asked) - mean) / spread, dtype=torch.float32)
            return np.exp(torch.logaddexp(network(scaled).squeeze(1), overhead).numpy()) * 1e6

    return predict
