"""Names of kernels travel from the source to the dataset, the model, the answer, the build list and the exported C."""

import json
import subprocess

import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.app.api.export import export
from kerncast.app.api.read import read
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.measurements import label_table
from kerncast.library.registry import FAMILIES
from kerncast.models.measured import labels_of, natural
from kerncast.native.tiers.build import TierOptions
from kerncast.native.tiers.smallest_set import portfolio_of
from kerncast.testing.exported import COMPILERS, STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}
RECIPE = Recipe("gbdt", {"trees": 5, "library_trees": 4, "leaves": 7}, folds=2)
CONFIGS = [f"config.{name}" for name in FAMILIES.get("gemm/triton").config.parameters]
# What a stranger may call a kernel: the ends of comments and strings, trigraphs, formats, markup.
HOSTILE = ["k_10 */ int x; /*", 'k_9 "); system("id', "k_2 ??/ \\", "k_1 %s%n</script>", "k_3 \u00e9\u4e2d"]


def named(rows):
    """Rows whose kernels have names: hostile ones first, then numbers in the reverse order of the configs."""
    distinct = rows.select(CONFIGS).unique(maintain_order=True)
    names = [*HOSTILE, *(f"k_{100 - i}" for i in range(distinct.height))][: distinct.height]
    return rows.drop("label").join(distinct.with_columns(label=pl.Series(names)), on=CONFIGS, how="left", nulls_equal=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    rows = named(synthetic_rows())
    train(synthetic_dataset(folder / "data", rows), folder / "model", RECIPE)
    return folder, rows


def wanted(rows, config):
    same = [pl.col(f"config.{name}").eq_missing(pl.lit(value)) for name, value in config.items()]
    return rows.filter(*same)["label"][0]


def test_an_answer_has_the_kernels_name_in_python_in_c_in_json_and_in_a_table(home, tmp_path):
    """The text of the source, to the last character, whatever it is."""
    folder, rows = home
    selector = Selector(folder / "model", options=TierOptions(samples=50))
    slow = Selector(folder / "model", tiers=selector.tiers, compile=False)
    for answer in selector.rank(SHAPE, 100):
        assert answer.label == wanted(rows, answer.config)
    for tier in ("tree", "portfolio", "full"):
        assert selector.select(SHAPE, tier).label == slow.select(SHAPE, tier).label is not None
    asked = json.dumps({**SHAPE, "tier": "full"})
    assert json.loads(selector.query(asked))["label"] == selector.select(SHAPE, "full").label
    assert [item.label for item in slow.rank(SHAPE, 100)] == [item.label for item in selector.rank(SHAPE, 100)]
    export(folder / "model", to="json", out=tmp_path / "table.json", problems=[SHAPE], progress=None)
    (entry,) = json.loads((tmp_path / "table.json").read_text())["choices"]
    assert entry["label"] == selector.select(SHAPE, "full").label
    selector.override({"deny": [HOSTILE[0]], "pin": [{"problem": {"M": SHAPE["M"]}, "label": HOSTILE[1]}]})
    assert selector.select(SHAPE).label == HOSTILE[1]


@pytest.mark.needs("a C compiler")
def test_exported_c_knows_the_names_and_what_the_export_denies_and_pins(home, tmp_path):
    """`label(n)` for every candidate, without a warning; a denied kernel is not chosen, and the self-test holds."""
    folder, _ = home
    overrides = {"deny": [HOSTILE[0]], "pin": [{"problem": {"M": SHAPE["M"]}, "label": HOSTILE[1]}]}
    export(folder / "model", out=tmp_path / "picker", prefix="picker", overrides=overrides, progress=None)
    (tmp_path / "picker" / "use.c").write_text(PROGRAM)
    for program in ("use", "selftest"):
        sources = [str(tmp_path / "picker" / name) for name in ("picker.c", f"{program}.c")]
        made = tmp_path / program
        subprocess.run([COMPILERS[0], *STRICT, "-trigraphs", "-O1", *sources, "-o", str(made), "-lm"], check=True)
    assert "0 differences" in subprocess.run([tmp_path / "selftest"], capture_output=True, text=True).stdout
    *names, chosen, denied = subprocess.run([tmp_path / "use"], capture_output=True, text=True).stdout.splitlines()
    selector = Selector(folder / "model", options=TierOptions(samples=50), compile=False)
    assert names == [selector.model.labels.of(number, SHAPE) for number in range(len(selector.configs))]
    assert chosen == f"1 {HOSTILE[1]}"
    assert denied == "not available"


def test_candidates_are_numbered_by_their_names(home, tmp_path):
    """`k_9` before `k_10`; other rows, other times and one more name at the end do not renumber the others."""
    folder, rows = home
    first = Selector(folder / "model", options=TierOptions(samples=50), compile=False).model.labels
    (names,) = first.names.values()
    assert list(names[:3]) == [HOSTILE[3], HOSTILE[2], HOSTILE[4]]
    other = rows.filter(pl.col("problem.M") < 5000).with_columns(pl.col("time_ns") * 1.7).drop("key")
    last = pl.col("label") == names[-1]
    train(
        synthetic_dataset(tmp_path / "data", other.with_columns(label=pl.when(last).then(pl.lit("k_999")).otherwise("label"))),
        tmp_path / "again",
        RECIPE,
    )
    (again,) = Selector(tmp_path / "again", options=TierOptions(samples=50), compile=False).model.labels.names.values()
    assert again[:-1] == names[:-1]


def test_a_name_that_says_more_than_the_config_depends_on_the_problem():
    """CK Tile's names contain dtype and layout: the name is that of the problem asked about; others of a config are kept."""
    family = FAMILIES.get("gemm/triton")
    rows = synthetic_rows(problems=6)
    both = pl.concat([rows, rows.with_columns(pl.lit("bf16").alias("problem.dtype"))])
    texts = pl.col("problem.dtype") + "_" + pl.concat_str(pl.col(CONFIGS).cast(pl.String).fill_null("-"))
    table = label_table(family, both.with_columns(label=texts))
    configs = rows.select(CONFIGS).unique(maintain_order=True)
    labels = labels_of(table, configs)
    assert labels.by == ("dtype",)
    assert labels.of(0, {**SHAPE, "dtype": "bf16"}) == labels.of(0, SHAPE).replace("fp16", "bf16")
    assert len(labels.all_of(0)) == 2
    assert labels.of(0, {**SHAPE, "dtype": "fp32"}) is None
    assert label_table(family, rows) is None
    alone = labels_of(label_table(family, rows.with_columns(label=texts)), configs)
    assert alone.of(0, SHAPE) == labels.of(0, SHAPE)
    assert alone.of(0, {**SHAPE, "dtype": "bf16"}) is None  # though no row tells that the name depends on it


def test_a_portfolio_is_a_build_list(home, tmp_path):
    """One name per line, of a model and of a dataset; data without names say what to do."""
    folder, _ = home
    found = portfolio_of(folder / "model", build_list=tmp_path / "list.txt")
    names = (tmp_path / "list.txt").read_text().splitlines()
    assert names == [name for labels in found.labels for name in labels]
    assert len(names) == len(found.configs)
    assert portfolio_of(folder / "data").labels == found.labels
    plain = synthetic_dataset(tmp_path / "plain", synthetic_rows(problems=6))
    with pytest.raises(InvalidValue, match="name no kernels"):
        portfolio_of(plain, build_list=tmp_path / "none.txt")


def test_a_mapping_names_the_column_of_names_and_data_without_one_are_stored_as_before(tmp_path):
    """A name with a line break or a NUL is skipped with its row; a dataset without names has no such column."""
    (tmp_path / "t.csv").write_text(
        "m,n,k,us,kernel\n" + "".join(f"{64 * i},64,64,{i}.5,gemm_{i % 3}\n" for i in range(1, 9)) + '64,64,64,9.5,"a\nb"\n'
    )
    mapping = 'family = "gemm/single"\ndevice = "a100"\n{}[problem]\nM = "m"\nN = "n"\nK = "k"\ndtype = {{ value = "fp16" }}\n'
    mapping += 'layout = {{ value = "rcr" }}\n[time]\ncolumn = "us"\nunit = "us"\n'
    (tmp_path / "named.toml").write_text(mapping.format('label = "kernel"\n'))
    (tmp_path / "plain.toml").write_text(mapping.format('ignore = ["kernel"]\n'))
    found = read(tmp_path / "t.csv", mapping=tmp_path / "named.toml", out=tmp_path / "named")
    assert found.frame()["label"].to_list() == [f"gemm_{i % 3}" for i in range(1, 9)]
    assert found.skipped.rows == 1
    read(tmp_path / "t.csv", mapping=tmp_path / "plain.toml", out=tmp_path / "plain")
    (part,) = (tmp_path / "plain").rglob("part-*.parquet")
    assert "label" not in pl.read_parquet_schema(part)
    merged = Dataset.merge([tmp_path / "named", tmp_path / "plain"], tmp_path / "both")
    assert merged.frame()["label"].null_count() == 9


PROGRAM = """
#include "picker.h"
#include <stdio.h>
int main(void) {
    picker_context *context;
    picker_answer answer;
    picker_problem problem;
    if (picker_create(&context) != PICKER_OK) return 1;
    for (int32_t i = 0; i < picker_candidates(); i++) puts(picker_label(i));
    picker_problem_init(&problem);
    problem.M = 1000, problem.N = 512, problem.K = 768;
    problem.dtype = PICKER_DTYPE_FP16, problem.layout = PICKER_LAYOUT_RCR;
    picker_select(context, &problem, PICKER_TIER_FULL, &answer);
    printf("%d %s\\n", (int)answer.pin, answer.label);
    for (int32_t i = 0; i < picker_candidates(); i++)
        if (picker_pin(context, &problem, i, &answer) != PICKER_OK) puts("not available");
    picker_destroy(context);
    return 0;
}
"""


def test_names_are_ordered_as_people_order_them():
    """Digits by their value, however many there are."""
    names = ["kernel_10", "kernel_9", "kernel_009", "a", "9" * 6000, "kernel_10_b", "7"]
    assert sorted(names, key=natural) == ["7", "9" * 6000, "a", "kernel_9", "kernel_009", "kernel_10", "kernel_10_b"]
