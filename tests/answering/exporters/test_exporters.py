"""Every kind of model through the exporter's battery."""

import subprocess
from itertools import product

import numpy as np
import polars as pl
import pytest

from kerncast.answering.exporters.golden import golden_vectors
from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.data import schema
from kerncast.library.registry import FAMILIES
from kerncast.native import encode
from kerncast.native.blob.runtime import BlobBinding, compiled_runtime
from kerncast.native.blob.sections import blob
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.native.tiers.distill import COMPARED
from kerncast.testing import repeats
from kerncast.testing.exported import COMPILERS, LEVEL, STRICT
from kerncast.testing.exporters import ExporterContract
from kerncast.testing.models import synthetic_dataset
from kerncast.training.train import Recipe, train


class CppInSoak:
    """The C++ header is the same for every kind of model."""

    @pytest.mark.needs("make soak")
    def test_the_cpp_header_answers_with_typed_problems_and_configs(self, exported):
        super().test_the_cpp_header_answers_with_typed_problems_and_configs(exported)


class TestRoofline(CppInSoak, ExporterContract):
    kind = "roofline"


class TestLinear(CppInSoak, ExporterContract):
    kind = "linear"


class TestMlp(CppInSoak, ExporterContract):
    kind = "mlp"
    knobs = {"epochs": 10, "hidden": (16,), "batch_size": 64, "lr": 5e-3}


class TestGbdt(ExporterContract):
    """With trees of their own for the library, which is one of the configs."""

    kind = "gbdt"
    knobs = {"trees": 30, "leaves": 15, "lr": 0.2, "library_trees": 20}
    rows = {"problems": 60}
    optimization = "-O3"  # as a build for users is

    def test_the_librarys_trees_are_exported(self, exported):
        """So the battery tries them too."""
        assert "library" in exported.artefact.forests.trees


class TestManyConfigs(ExporterContract):
    """More configs than a word has bits: sets of several words, screened by rounded sums; and more trees than a portfolio
    has time for."""

    kind = "gbdt"
    knobs = {"trees": 100, "leaves": 15, "lr": 0.1, "library_trees": 20}
    random_problems = repeats(200, 20_000)
    rows = {"problems": 40, "tiles": list(product((16, 32, 64, 128), (16, 32, 64), (16, 32, 64), (2, 3), (4,)))}

    def test_a_small_forest_ranks_the_portfolio(self, exported):
        """So the battery tries that path too, and rounded sums with the library's trees among them."""
        assert exported.artefact.tiers.forest is not None
        assert "library" in exported.artefact.forests.trees

    def test_some_leaves_of_the_tree_compare_configs(self, exported):
        """So the battery compares compiled and interpreted comparisons, under masks too."""
        assert set(exported.artefact.tiers.tree.compares.tolist()) == {1, COMPARED}


@pytest.mark.needs("torch")
class TestDeep(ExporterContract):
    kind = "deep"
    knobs = {"epochs": 5, "hidden": (16, 8), "blocks": 1, "batch_size": 64, "lr": 5e-3}


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("kind", ["gbdt", "linear"])
def test_an_op_with_nothing_to_choose_is_exported_for_its_times(kind, tmp_path):
    """One config without parameters: `select` says how long the op takes."""
    rng = np.random.default_rng(0)
    sides = 32 * rng.integers(1, 64, (60, 2))
    rows = pl.DataFrame(
        {"problem.func": "exp", "problem.dim2": sides[:, 0], "problem.dim3": sides[:, 1], "problem.dtype": "bf16",
         "problem.buffer": "l1", "device": "wormhole_b0", "status": "ok", "time_ns": 900.0 + 0.01 * sides[:, 0] * sides[:, 1]}
    )  # fmt: skip
    family = FAMILIES.get("eltwise_unary/single")
    data = synthetic_dataset(tmp_path / "data", schema.conform(family, rows), family)
    model = train(data, tmp_path / "model", Recipe(kind, {"trees": 20} if kind == "gbdt" else {}, folds=2))
    artefact = lower(model, build_tiers(model, TierOptions()), ["portfolio", "full"])
    write_project(artefact, tmp_path / "picker", "picker")
    sources = [str(tmp_path / "picker" / name) for name in ("picker.c", "selftest.c")]
    subprocess.run([COMPILERS[0], *STRICT, LEVEL, *sources, "-o", str(tmp_path / "selftest"), "-lm"], check=True)
    assert "0 differences" in subprocess.run([tmp_path / "selftest"], capture_output=True, text=True).stdout
    selector = Selector(model, tiers=artefact.tiers, compile=False)
    shape = {"func": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "l1"}
    assert selector.predict(shape).time_ns == pytest.approx(selector.select(shape, "full").time_ns)
    loaded = BlobBinding(compiled_runtime(), blob(artefact, golden_vectors(artefact)), "the model")
    assert loaded.self_test() > 0
    numbers = encode(selector.model.family.problem, selector.problem(shape))
    assert loaded.select(numbers, "full").time_ns == selector.select(shape, "full").time_ns
