"""The models that come with the package: the recipe that builds them, and that they still say what they said."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from releasing.golden import GOLDEN, check_golden, write_golden

import kerncast
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models.manifest import CARD
from kerncast.models.model import Model
from kerncast.models.physics import read_misses
from kerncast.models.store import entry as shipped
from kerncast.regenerating.shipping import NOTICE_FILE, PLANS, build_shipped, plans_named
from kerncast.testing.models import synthetic_table
from kerncast.training.procedure import Recipe

GPUS = {"h100_sxm": ("NVIDIA H100 80GB HBM3", 1.0), "a100_sxm": ("NVIDIA A100-SXM4-80GB", 3.0)}
MOST_BYTES = 25_000_000


def write_tables(folder: Path) -> Path:
    """GEMM and attention tables of two GPUs, made by a rule, in the folders that AIConfigurator has."""
    for system, (device, slower) in GPUS.items():
        told = {"framework": "VLLM", "version": "0.24.0", "device": device, "kernel_source": "vllm_default"}
        gemm = [
            {**told, "op_name": "gemm", "gemm_dtype": "bfloat16", "m": m, "n": n, "k": k,
             "latency": slower * (0.004 + 2e-12 * m * n * k * (1.0 + 0.1 * math.sin(m + n)))}
            for m, n, k in product((1, 4, 16, 64, 256, 1024), (256, 512, 1024, 4096), (256, 1024, 2048, 8192))
        ]  # fmt: skip
        heads = [
            {**told, "op_name": "context_attention", "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
             "batch_size": batch, "isl": isl, "num_heads": heads, "num_key_value_heads": 0, "head_dim": 128,
             "window_size": 0, "beam_width": 1,
             "step": 0, "latency": slower * (0.01 + 1e-10 * batch * isl * isl * heads)}
            for batch, isl, heads in product((1, 2, 8, 32), (64, 512, 1024, 4096), (4, 8, 32))
        ]  # fmt: skip
        for group, kind, rows in (("gemm", "gemm", gemm), ("attention", "context_attention", heads)):
            place = folder / system / group / "vllm" / "0.24.0"
            place.mkdir(parents=True)
            pl.DataFrame(rows).write_parquet(place / f"{kind}_perf.parquet")
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The recipe, run on tables that a rule made."""
    folder = tmp_path_factory.mktemp("shipping")
    tables = write_tables(folder / "tables")
    return tables, folder / "out", build_shipped(tables, folder / "out", sample="small", threads=1)


def test_the_recipe_builds_what_the_tables_hold_and_names_the_rest(built):
    """One model per op and framework with its card and attribution; nothing is left out in silence."""
    _, out, found = built
    done = {item.name: item for item in found if not item.left_out}
    assert set(done) == {"gemm-vllm", "attention_context-vllm"}
    assert done["gemm-vllm"].devices == ("a100", "h100")
    assert len(found) == len(PLANS)
    assert all(item.left_out for item in found if item.name not in done)
    card = (out / "gemm-vllm" / CARD).read_text()
    assert "a100 0.24.0, h100 0.24.0" in card
    assert "Apache-2.0" in card
    assert "kerncast regenerate shipped --only gemm-vllm --sample small" in card
    assert "| a100 | bf16 | 96 |" in card
    assert "Apache License" in (out / NOTICE_FILE).read_text()
    assert set(read_misses(out / "roofline.json").ops) == {"gemm", "attention_context"}


def test_a_built_model_says_what_its_golden_predictions_say(built):
    """The same tables build the same model; another answer is named."""
    tables, out, _ = built
    write_golden(Model.load(out / "gemm-vllm"), out / "gemm-vllm")
    assert check_golden(out / "gemm-vllm") == []
    before = (out / "gemm-vllm" / "model.json").read_bytes()
    golden = out / "gemm-vllm" / GOLDEN
    stored = json.loads(golden.read_bytes())
    assert {item["device"] for item in stored} == {"a100", "h100"}
    stored[0]["time_ns"] *= 1.001
    golden.write_text(json.dumps(stored))
    (wrong,) = check_golden(out / "gemm-vllm")
    assert "gemm-vllm on a100" in wrong
    golden.write_text("[{")
    with pytest.raises(BadFile, match=r"golden\.json is damaged"):
        check_golden(out / "gemm-vllm")
    build_shipped(tables, out, only=["gemm-vllm"], sample="small", threads=1)
    assert (out / "gemm-vllm" / "model.json").read_bytes() == before


def test_the_command_line_builds_and_refuses(run, built, tmp_path):
    """`regenerate shipped` prints what it built, and says what it needs, by the names of its options."""
    tables, _, _ = built
    code, planned, _ = run("regenerate", "shipped", "--dry-run", "--only", "moe", "--rows", "1000", "--json")
    named = [(item["name"], item["rows"]) for item in json.loads(planned)]
    assert (code, named) == (0, [("moe-trtllm", 1000), ("moe-vllm", 1000), ("moe-sglang", 1000)])
    words = ("regenerate", "shipped", "--tables", tables)
    wanted = (*words, "--sample", "small", "--out", tmp_path / "out", "--json")
    code, done, _ = run(*wanted, "--only", "attention_context-vllm")
    assert (code, json.loads(done)["models"][0]["rows"]) == (0, 96)
    assert run(*wanted, "--only", "moe-vllm")[0] == 1
    for asked, said in (
        (words[:2], "--tables PATH"),
        ((*words[:3], tmp_path / "none"), "pip download"),
        ((*words, "--again"), "No such option '--again'"),
        (("regenerate", "gemm-cpu", "--sample", "small"), "No such option '--sample'"),
        ((*words, "--only", "gem-vllm"), "gem-vllm"),
    ):
        code, _, error = run(*asked)
        assert code == 2
        assert said in error


def write_wormhole_tables(folder: Path) -> Path:
    """A table of `exp` and one of lines of reshards, made by a rule, with the columns that the public ones have."""
    folder.mkdir()
    shapes = [f"input_shape_{number}" for number in (1, 2, 3, 4)]
    lines = [",".join([*shapes, "bfloat8", "bfloat16", "input_DRAM", "input_L1", "kernel_duration"])]
    for height, width, l1 in product(range(32, 1024, 96), range(32, 1024, 96), (0, 1)):
        lines.append(f"{height},{width},0,0,0,1,{1 - l1},{l1},{1500 + 40 * (height * width // 1024) // (1 + l1)}")
    (folder / "big_exp_dataset.csv").write_text("\n".join(lines) + "\n")
    lines = ["in_grid,out_grid,group,coef,intercept,r^2,RRMSE,RMSRE,num_points"]
    sides = [f"ShardStrategy.{name}-ShardOrientation.ROW_MAJOR" for name in ("BLOCK", "HEIGHT", "WIDTH")]
    for place, (source, target, way) in enumerate(product(("1x2", "2x2", "4x2"), ("1x4", "2x1", "8x1"), sides)):
        lines.append(f"{source},{target},{sides[0]}-{way},{20 + place % 7}.5,1900.5,0.99,0.02,0.03,400")
    (folder / "all_models.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_wormhole_models_are_built_from_their_own_tables_beside_others(run, tmp_path):
    """A second source adds its models, cards and attribution, and leaves those of the first and the rooflines as they are."""
    out = tmp_path / "out"
    out.mkdir()
    (out / NOTICE_FILE).write_text(
        "x\n\n- op tables of AIConfigurator (NVIDIA), PyPI aiconfigurator-core==0.12.0. Copyright.\n"
    )
    cards = write_wormhole_tables(tmp_path / "cards")
    wanted = ("regenerate", "shipped", "--tables", cards, "--sample", "small", "--threads", "1", "--out", out, "--json")
    code, said, _ = run(*wanted)
    done = {item["name"]: item for item in json.loads(said)["models"] if not item["left_out"]}
    assert (code, set(done)) == (0, {"exp-wormhole", "reshard_block-wormhole"})
    assert all(item["devices"] == ["wormhole_b0"] for item in done.values())
    left = {item["name"]: item["left_out"] for item in json.loads(said)["models"] if item["left_out"]}
    assert left["exp_all_dtypes-wormhole"] == "there is no file final_exp_dataset.csv"
    assert left["gemm-vllm"] == "there is no table of gemm"
    assert left["reshard_width-wormhole"] == "no row of its table has problem.in_strategy=width"
    card = (out / "reshard_block-wormhole" / CARD).read_text()
    for words in ("licence Apache-2.0 (file LICENSE of that repository)", "points of straight lines", "| block | width |",
                  "--tables all_models.csv.gz --only reshard_block-wormhole --sample small"):  # fmt: skip
        assert words in card
    notice = (out / NOTICE_FILE).read_text()
    assert notice.count("- op tables of AIConfigurator") == 1
    assert "Copyright 2023 Tenstorrent Inc." in notice
    assert "Copyright 2025 Tenstorrent AI ULC" in notice
    assert not (out / "roofline.json").exists()
    (cards / "again").mkdir()
    (cards / "again" / "all_models.csv.gz").write_bytes(b"")
    code, _, error = run(*wanted)
    assert (code, "two files that may be all_models.csv.gz" in error) == (2, True)


def test_plans_are_named_by_model_or_op():
    """A name that is neither is refused; models have one plan each."""
    assert len({plan.name for plan in PLANS}) == len(PLANS)
    assert [plan.name for plan in plans_named(["gemm-vllm", "mixed_mm"])] == ["gemm-vllm", "mixed_mm-trtllm"]
    with pytest.raises(NotFound, match="gemm-vlm"):
        plans_named(["gemm-vlm"])
    with pytest.raises(InvalidValue, match="small"):
        build_shipped(Path("nowhere"), Path("nowhere"), sample="tiny")


@pytest.mark.parametrize("rows", [40, 300])
def test_a_sample_of_rows_has_whole_problems_and_the_same_ones_again(rows):
    """Training on part of a table never splits a problem, and the seed decides which ones are drawn."""
    table = synthetic_table()
    found = Recipe(rows=rows, seed=1).sampled(table)
    assert 0 < len(found.time_ns) <= rows
    whole = table.rows.frame.group_by(pl.selectors.starts_with("problem.")).len()
    drawn = found.rows.frame.group_by(pl.selectors.starts_with("problem.")).len()
    assert drawn.join(whole, on=drawn.columns, nulls_equal=True).height == drawn.height
    assert found.rows.frame.equals(Recipe(rows=rows, seed=1).sampled(table).rows.frame)
    assert not found.rows.frame.equals(Recipe(rows=rows, seed=2).sampled(table).rows.frame)


def shipped_models() -> list[Path]:
    """The models of the package."""
    folder = Path(shipped.__file__).resolve().parents[2] / "library" / "shipped"
    return sorted(file.parent for file in folder.glob("*/model.json"))


@pytest.mark.parametrize("folder", shipped_models(), ids=lambda path: path.name)
def test_a_shipped_model_still_says_what_it_said(folder):
    """No change of features, trees or arithmetic alters an answer of a fresh install unseen."""
    assert check_golden(folder) == []


def test_the_shipped_models_are_small_and_attributed():
    """All of them together fit the wheel, and NOTICE names the tables."""
    folders = shipped_models()
    files = [file for folder in folders for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    for folder in folders:
        assert "Apache-2.0" in (folder / CARD).read_text()
        assert folder.name in {plan.name for plan in PLANS}
    notice = (folders[0].parent / NOTICE_FILE).read_text()
    assert "aiconfigurator-core" in notice
    assert "github.com/tenstorrent/ttnn-op-runtime-predictor" in notice
    assert "github.com/tenstorrent/tt-metal/issues/14762" in notice


@pytest.mark.parametrize(
    ("op", "problem"),
    [("ttnn.exp", {"dim2": 512, "dim3": 1024, "dtype": dtype, "buffer": "l1"}) for dtype in ("bf16", "fp32")]
    + [
        ("ttnn.reshard", {"in_strategy": source, "out_strategy": target, "in_x": 2, "in_y": 4, "out_x": 8, "out_y": 1,
                          "height_tiles": 64, "width_tiles": 64})
        for source, target in (("block", "width"), ("width", "height"), ("height", "block"), ("width", "width"))
    ],
)  # fmt: skip
def test_a_fresh_install_answers_for_wormhole_cards(op, problem, tmp_path):
    """By the model of the dtype or of the pair of strategies; a pair that nobody measured is refused by the models."""
    found = kerncast.predict(op, problem, device="n150", store=tmp_path / "empty")
    measured = problem.get("out_strategy") != problem.get("in_strategy") or op == "ttnn.exp"
    assert (found.basis == "model", found.ok) == (measured, measured)
    assert found.time_ns is not None
