"""Every kind of model through the exporter's battery."""

import importlib.util
from itertools import product

import pytest

from kerncast.testing.exporters import ExporterContract


class TestRoofline(ExporterContract):
    kind = "roofline"


class TestLinear(ExporterContract):
    kind = "linear"


class TestMlp(ExporterContract):
    kind = "mlp"
    knobs = {"epochs": 10, "hidden": (16,), "batch_size": 64, "lr": 5e-3}


class TestGbdt(ExporterContract):
    kind = "gbdt"
    knobs = {"trees": 30, "leaves": 15, "lr": 0.2}


class TestManyConfigs(ExporterContract):
    """More configs than a word has bits: sets of several words, screened by rounded sums."""

    kind = "gbdt"
    knobs = {"trees": 30, "leaves": 15, "lr": 0.2}
    random_problems = 2_000
    rows = {
        "problems": 24,
        "tiles": list(product((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64), (2, 3), (2, 4))),
    }


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
class TestDeep(ExporterContract):
    kind = "deep"
    knobs = {"epochs": 5, "hidden": (16, 8), "blocks": 1, "batch_size": 64, "lr": 5e-3}
