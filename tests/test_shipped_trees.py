"""PyTorch's trees are asked with the features of AutoHeuristic's logs, and their choices are found by its names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kerncast.learning.table import Table

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
FEATURES = "m,k,n,mat1_dtype,mat2_dtype,mat1_stride_0,mat1_stride_1,mat2_stride_0,mat2_stride_1,mat1_iscontig,mat2_iscontig"
MM_PROBLEMS = (
    "96,32,64,torch.bfloat16,torch.bfloat16,1,96,1,32,False,False,not_float_32",
    "96,32,64,torch.float32,torch.float32,32,1,64,1,True,True,True",
)
MIXED_PROBLEMS = ("16,2048,1024,torch.float16,torch.int8,2048,1,1,2048,True,False",)
TILES = [f"type=triton_BLOCK-M={size}_BLOCK-K=32_BLOCK-N=64_numstages=3_numwarps=4" for size in (16, 128)]

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks are not part of a source distribution")


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("shipped_trees")


@pytest.fixture
def table(trees: ModuleType, tmp_path: Path) -> Callable[..., Table]:
    def made(name: str, header: str, problems: tuple[str, ...], library: str) -> Table:
        first = f'{{"shared_memory": 166912, "device_capa": [8, 0], "name": "{name}", "numerical_features": []}}'
        rows = [f"{problem},{choice},{time}" for problem in problems for time, choice in enumerate((library, *TILES), start=1)]
        path = tmp_path / "log.txt"
        path.write_text("\n".join([first, f"{header},choice,feedback", *rows, ""]))
        found: Table = importlib.import_module("choosing").table_of("autoheuristic", path, "a100")
        return found

    return made


@pytest.fixture
def mm(table: Callable[..., Table]) -> Table:
    return table("mm", f"{FEATURES},using_tf32", MM_PROBLEMS, "extern_mm")


@pytest.fixture
def mixed_mm(table: Callable[..., Table]) -> Table:
    return table("mixed_mm", FEATURES, MIXED_PROBLEMS, "extern_fallback_mixed_mm")


def _told(trees: ModuleType, table: Table, header: str) -> set[str]:
    asked = [trees.features_of(problem) for problem in table.problems.iter_rows(named=True)]
    return {",".join(str(features[name]) for name in header.split(",")) for features in asked}


def test_features_are_those_of_the_log(trees: ModuleType, mm: Table, mixed_mm: Table) -> None:
    """Sizes, dtypes and strides that are made from a problem are those that the log had for it."""
    assert _told(trees, mm, f"{FEATURES},using_tf32") == set(MM_PROBLEMS)
    assert _told(trees, mixed_mm, FEATURES) == set(MIXED_PROBLEMS)


def test_configs_have_the_names_of_the_log(trees: ModuleType, mm: Table) -> None:
    """A tile is called as in the log, and every library by one name."""
    assert set(trees.choice_names(mm)) == {"extern_", *TILES}


@pytest.mark.needs("torch")
def test_a_choice_is_the_first_listed_one_that_was_measured(
    trees: ModuleType, mm: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no row is passed over, and the label counts these problems."""
    monkeypatch.setattr(trees.Tree, "lister", lambda self: lambda features: ["type=triton_of_no_row", TILES[0], "extern_mm"])
    first, oracle = trees.shipped(trees.MM, mm)
    assert first.card["efficiency_mean"]["value"] == pytest.approx(1 / 2)
    assert "on 2 problems their first choice was not measured" in first.label
    assert oracle.card["efficiency_mean"]["value"] == 1.0


@pytest.mark.needs("torch")
def test_where_the_trees_are_not_sure_the_library_is_the_choice(
    trees: ModuleType, mm: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answered problems are scored by themselves, then all of them with the library in the gaps."""
    monkeypatch.setattr(trees.Tree, "lister", lambda self: lambda features: TILES[1:] if features["mat1_iscontig"] else None)
    sure, _, filled = trees.shipped(trees.MM, mm)
    assert sure.answered.tolist().count(True) == sure.card["n_problems"] == 1
    assert sure.card["efficiency_mean"]["value"] == pytest.approx(1 / 3)
    assert filled.card["n_problems"] == 2
    assert filled.card["efficiency_mean"]["value"] == pytest.approx((1 / 3 + 1) / 2)


def test_without_torch_a_row_says_so(trees: ModuleType, mm: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark goes on without the peer, and names what is missing."""
    monkeypatch.setattr(trees, "PACKAGE", "no_such_package")
    (peer,) = trees.shipped(trees.MM, mm)
    assert peer.card is None
    assert peer.label == "PyTorch's shipped trees: not run (No module named 'no_such_package')"
