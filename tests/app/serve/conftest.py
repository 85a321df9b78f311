"""A small model in a store, and servers of it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest

from kerncast.data import schema
from kerncast.library.registry import FAMILIES
from kerncast.models.store.store import Store
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

DEADLINE = 60


@pytest.fixture(scope="session")
def exp_model(tmp_path_factory):
    """How long exp takes on tensors of bf16 and bfp8."""
    folder, chance = tmp_path_factory.mktemp("serving"), np.random.default_rng(0)
    sides = 32 * chance.integers(1, 64, (240, 2))
    rows = pl.DataFrame(
        {"problem.func": "exp", "problem.dim2": sides[:, 0], "problem.dim3": sides[:, 1], "device": "wormhole_b0",
         "problem.dtype": ["bf16", "bfp8"] * 120, "problem.buffer": ["dram", "dram", "l1", "l1"] * 60, "status": "ok",
         "time_ns": 900.0 + 0.01 * sides[:, 0] * sides[:, 1]}
    )  # fmt: skip
    family = FAMILIES.get("eltwise_unary/single")
    data = synthetic_dataset(folder / "data", schema.conform(family, rows), family)
    knobs = {"lr": 0.3, "trees": 20, "library_trees": 4, "leaves": 7}
    # Times as they are, not their logarithms: sums of leaves, the same in C and in Python to the last bit.
    recipe = Recipe("gbdt", knobs, target="latency", target_log=False, folds=2, threads=1)
    return train(data, folder / "model", recipe)


@pytest.fixture(scope="session")
def explored(tmp_path_factory):
    """A folder with `data` of made-up measurements, `model` and `slim`, which chooses among configs."""
    folder = tmp_path_factory.mktemp("explored")
    data = synthetic_dataset(folder / "data", synthetic_rows(problems=40, repeats=2, noise=0.02))
    model = train(data, folder / "model", Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 15}, folds=2, threads=1))
    model.slimmed(folder / "slim")
    return folder


@pytest.fixture
def store(exp_model, tmp_path, tmp_path_factory, monkeypatch):
    """A store with that model, and nothing that ships."""
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    made = Store.open(tmp_path / "store")
    made.add(exp_model)
    return made


class Running:
    """A server in a process of its own."""

    def __init__(self, process):
        self.process = process
        self.url = json.loads(process.stdout.readline())["url"].rstrip("/")

    def stop(self):
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


@pytest.fixture
def serving():
    """Start `kerncast serve` with some options."""

    @contextmanager
    def start(*options, **environment):
        command = [sys.executable, "-m", "kerncast.app.cli", "serve", *map(str, options), "--port", "0", "--json"]
        env = {**os.environ, **environment}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
            try:
                yield Running(process)
            finally:
                process.kill()

    return start
