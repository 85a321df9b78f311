"""Trees that cut the sizes of problems at random."""

import numpy as np
import polars as pl

from kerncast.core.device import Device
from kerncast.learning.feature_rows import Featurizer
from kerncast.learning.learners.leaf_shift import LabelCombinations, SizePartitions, shifted, size_features
from kerncast.learning.learners.trees import Tree, sum_of
from kerncast.library.families.gemm_triton import gemm_library

GPU = Device("gpu", "gpu", "gpu", {"num_cus": 100, "memory_bandwidth_gb_s": 2000, "l2_cache_kb": 40_000},
             {"bf16": 300, "fp8": 600})  # fmt: skip
LENGTH, COUNT = 2.0, 2000


def rows_of(m, dtype, n=4096, k=4096):
    frame = pl.DataFrame({"problem.M": m, "problem.dtype": dtype}).with_columns(
        pl.lit(n).alias("problem.N"), pl.lit(k).alias("problem.K"), pl.lit("rcr").alias("problem.layout"),
        pl.lit(1).alias("problem.split_k"), pl.lit(1).alias("problem.batch"),
        pl.lit("torch_flow").alias("config.kernel_source"), pl.lit(False).alias("problem.bias"),
        pl.lit("none").alias("problem.activation"), *(pl.lit(k).alias(f"problem.{name}") for name in ("lda", "ldb", "ldc")),
    )  # fmt: skip
    return Featurizer(gemm_library, GPU, ("bf16", "fp8")).describe(frame)


def cut(rows, count=COUNT):
    labels = LabelCombinations.of(rows)
    number = labels.number(rows.features)
    router = labels.draft(np.arange(1.0, 1.0 + len(labels.known)))
    return SizePartitions.of(rows, number).trees(router, LENGTH, count, np.random.default_rng(0))


def test_the_sizes_are_the_numbers_of_the_problem_that_differ():
    """Labels, numbers of the device, features made of several numbers and sizes that are the same everywhere are not cut."""
    rows = rows_of([1, 64, 4096], ["bf16", "fp8", "bf16"])
    assert [rows.names[place] for place in size_features(rows)] == ["M"]


def test_rows_share_leaves_as_often_as_they_are_near():
    """Of one dtype, exp(-octaves / length) of the trees; of two dtypes, none."""
    rows = rows_of([1, 4, 64, 64], ["bf16", "bf16", "bf16", "fp8"])
    leaves = np.stack([tree.leaf_of(rows.features) for tree in cut(rows)])
    for other, octaves in ((1, 2), (2, 6)):
        assert abs((leaves[:, 0] == leaves[:, other]).mean() - np.exp(-octaves / LENGTH)) < 0.04
    assert not (leaves[:, 2] == leaves[:, 3]).any()


def test_what_depends_on_the_size_in_one_dtype_is_learned_there_alone():
    """A base that knows nothing, and times that rise with M in fp8 only: other M of fp8 follow, bf16 stays."""
    m = 2 ** np.arange(13)
    rows = rows_of(np.tile(m, 2), ["bf16"] * 13 + ["fp8"] * 13)
    nothing = Tree(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1))
    misses = np.concatenate([np.zeros(13), np.linspace(-1, 1, 13)])
    found = shifted([nothing], [], rows, misses, np.ones(26), seed=0)
    between = rows_of(np.tile(3 * m[:12] // 2, 2), ["bf16"] * 12 + ["fp8"] * 12)
    said = sum_of(found, between.features)
    expected = np.linspace(-1, 1, 13)[:12] + 1 / 12
    assert np.abs(said[:12]).max() < 0.2
    assert np.abs(said[12:] - expected).mean() < 0.15


def test_the_same_rows_and_seed_give_the_same_trees():
    """Cuts are drawn from the seed alone."""
    rows = rows_of([1, 4, 64, 64], ["bf16", "bf16", "bf16", "fp8"])
    for one, other in zip(cut(rows, 5), cut(rows, 5), strict=True):
        np.testing.assert_array_equal(one.threshold, other.threshold)


def test_rows_that_differ_in_no_size_are_not_cut():
    """Configs of one problem have no sizes to tell apart."""
    assert cut(rows_of([64, 64], ["bf16", "fp8"])) == ()
