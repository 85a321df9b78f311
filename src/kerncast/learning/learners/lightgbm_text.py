"""LightGBM's text of a forest: what others wrote is checked here before LightGBM or C sees it.

LightGBM trusts its text: a child that does not exist, a count that is not that of the numbers, or a tree that leads back to
itself ends the process or never ends. So the whole text must follow the grammar below, and every tree must be one.
`load_forest` is the only way from a file to a booster; it checks each file but those that this process wrote. `read_trees`
reads the text of a booster of this process, which LightGBM has just written: there is nothing to check in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.io.artefact import is_own
from kerncast.core.io.foreign import FOREST, decode_json, gunzip
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.trees import Tree, cut, refuse_bad_trees, without_categories

if TYPE_CHECKING:
    from lightgbm import Booster

CATEGORICAL_BIT = 1
# Bits 2 and 3 of a decision say what counts as missing: nothing, zero or NaN.
ZERO_IS_MISSING, KINDS_OF_MISSING = 1, 3
# Objectives whose forests have one output.
OBJECTIVES = frozenset({
    "regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie", "binary",
    "cross_entropy", "cross_entropy_lambda", "lambdarank", "rank_xendcg", "custom", "none",
})  # fmt: skip
# The sum of a forest stays finite, and so do powers of two that scale it.
LARGEST_LEAF = 1e100
# Of a tree; LightGBM's own limit.
MOST_LEAVES = 131_072
WORD_BITS = 32
# LightGBM counts rows up to here.
MOST_COUNTED = 2**31 - 1

Number = type[pl.Int64 | pl.Float64]

NUMBER = rb"-?\d+(?:\.\d+)?(?:e[-+]?\d{1,4})?"
# Whole numbers, numbers, and statistics of training, which no prediction reads: LightGBM reads as many of them as it expects.
WHOLE, NUMBERS, STATISTICS = rb"[0-9 -]*", rb"[0-9+.e -]*", rb"[0-9+.einfa -]*"
# By key of the lines before the trees: what may follow it.
HEADER = {
    b"version": rb"v[234]",
    b"num_class": rb"1",
    b"num_tree_per_iteration": rb"1",
    b"label_index": rb"\d{1,9}",
    b"max_feature_idx": rb"\d{1,9}",
    b"objective": rb"(?:%s)(?: (?:sqrt|[a-z_]+:%s))*+" % ("|".join(sorted(OBJECTIVES)).encode(), NUMBER),
    b"average_output": rb"",
    b"feature_names": rb"[^ ]+(?: [^ ]+)*+",
    b"monotone_constraints": WHOLE,
    b"feature_infos": rb".*",
    b"tree_sizes": rb"\d{1,12}(?: \d{1,12})*+",
}
IN_HEADER = HEADER.keys() - {b"label_index", b"objective", b"average_output", b"monotone_constraints", b"feature_infos"}
# By key of the lines of a tree; one value per node, one per leaf, or of the tree.
OF_NODES = {
    b"split_feature": WHOLE, b"split_gain": STATISTICS, b"threshold": NUMBERS, b"decision_type": WHOLE, b"left_child": WHOLE,
    b"right_child": WHOLE, b"internal_value": STATISTICS, b"internal_weight": STATISTICS, b"internal_count": WHOLE,
}  # fmt: skip
OF_LEAVES = {b"leaf_value": NUMBERS, b"leaf_weight": STATISTICS, b"leaf_count": WHOLE}
TREE = {
    b"num_leaves": rb"\d{1,6}", b"num_cat": rb"\d{1,9}", b"is_linear": rb"0", b"shrinkage": NUMBER,
    **OF_NODES, **OF_LEAVES, b"cat_boundaries": WHOLE, b"cat_threshold": WHOLE,
}  # fmt: skip
# Without these there is no tree; LightGBM leaves others out in older versions.
NEEDED = (b"split_feature", b"threshold", b"decision_type", b"left_child", b"right_child", b"leaf_value")
TAIL = re.compile(
    rb"\n*(?:feature_importances:\n(?:[^\n=]+=" + NUMBER + rb"\n)*+)?"
    rb"\n*(?:parameters:\n(?:\[[a-z0-9_]+: [^\x00-\x1f\x7f]*\]\n)*+\n*end of parameters\n)?"
    rb"\n*(?:pandas_categorical:(?P<categories>[^\n]*)\n)?\n*"
)


@dataclass(frozen=True)
class ForestText:
    """A forest as its text says it, checked."""

    names: tuple[str, ...]
    averaged: bool
    """Whether it is a random forest, whose trees are averaged."""
    nodes: Ints
    """By tree: how many nodes it has; it has one leaf more."""
    arrays: dict[str, npt.NDArray[Any]]
    """The fields of all trees one after the other, as in `Tree`."""
    decisions: Ints
    lines: Sequence[Mapping[bytes, bytes]]
    """By tree: its lines `key=value`."""

    def trees(self) -> tuple[Tree, ...]:
        """The trees in the order in which their values are added; splits that C could not reproduce are refused.

        Splits by category become comparisons.
        """
        if self.averaged:
            raise InvalidValue("a random forest averages its trees, which exported C does not support: train with boosting")
        missing = (self.decisions >> 2) & KINDS_OF_MISSING
        if (missing[(self.decisions & CATEGORICAL_BIT) == 0] == ZERO_IS_MISSING).any():
            raise InvalidValue("the forest has zero-as-missing splits, which C does not support")
        ends = np.cumsum(self.nodes)[:-1]
        by_category = np.split(self.decisions & CATEGORICAL_BIT == 1, ends)
        plain = zip(cut(self.nodes, self.arrays), self.lines, map(np.flatnonzero, by_category), strict=True)
        return tuple(without_categories(tree, _sets(lines, nodes, tree.threshold)).preorder() for tree, lines, nodes in plain)


def read_trees(text: str) -> tuple[Tree, ...]:
    """The trees of a booster of this process, in the order in which their values are added."""
    head, _, body = text.encode().partition(b"\n\nTree=0\n")
    blocks = body.partition(b"\nend of trees\n")[0].split(b"\n\nTree=")
    lines = [dict(line.split(b"=", 1) for line in block.split(b"\n") if b"=" in line) for block in blocks]
    return _forest((), b"\naverage_output" in head, lines).trees()


def load_forest(file: Path, names: Sequence[str] | None = None, remedy: str = "train the model again") -> Booster:
    """The booster of a file (gzip, or plain text); its features must be `names`, if they are given."""
    from lightgbm import Booster
    from lightgbm.basic import LightGBMError

    try:
        data = gunzip(file, FOREST) if file.suffix == ".gz" else FOREST.read(file)
        text = data.decode()
        if not is_own(file):
            forest = parse_forest(text)
            if names is not None:
                refuse_other_names(forest.names, names)
        return Booster(model_str=text)
    except (OSError, ValueError, LightGBMError) as error:
        raise BadFile(f"{file} is damaged ({error}): restore it, or {remedy}") from error


def explaining(trees: Sequence[Tree], background: Floats) -> Booster:
    """Trees as a booster whose `pred_contrib` says what each feature adds to a prediction, compared with some background rows.

    Exact Shapley values (TreeSHAP): the mean of the background and what the features add make the prediction.
    """
    from lightgbm import Booster

    count = background.shape[1]
    names = " ".join(f"f{place}" for place in range(count))
    lines = [
        *("tree", "version=v4", "num_class=1", "num_tree_per_iteration=1", "label_index=0", f"max_feature_idx={count - 1}"),
        *("objective=regression", f"feature_names={names}", f"feature_infos={' '.join(['none'] * count)}", ""),
    ]
    for number, tree in enumerate(trees):
        own, inner = tree.preorder(), len(tree.feature)
        # LightGBM divides by the counts of ways that no row may have come, so each leaf counts as reached a little.
        times = (MOST_COUNTED - inner) // (len(background) + 1)
        leaves = np.bincount(own.leaf_of(background), minlength=inner + 1) * times + 1
        counts = np.zeros(inner, np.int64)
        for node in range(inner - 1, -1, -1):
            counts[node] = sum(counts[side] if side >= 0 else leaves[-1 - side] for side in (own.left[node], own.right[node]))
        zeros = np.zeros(inner, np.int64)
        fields = {
            "split_feature": own.feature,
            "split_gain": zeros,
            "threshold": own.threshold,
            "decision_type": zeros,
            "left_child": own.left,
            "right_child": own.right,
            "leaf_value": own.value,
            "leaf_weight": leaves,
            "leaf_count": leaves,
            "internal_value": zeros,
            "internal_weight": zeros,
            "internal_count": counts,
        }
        lines += [f"Tree={number}", f"num_leaves={inner + 1}", "num_cat=0"]
        lines += [f"{name}={' '.join(map(repr, values.tolist()))}" for name, values in fields.items()]
        lines += ["is_linear=0", "shrinkage=1", "", ""]
    return Booster(model_str="\n".join([*lines, "end of trees", ""]))


def refuse_other_names(own: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a forest that does not read these features in this order. LightGBM writes blanks in names as underscores."""
    given = [re.sub(r"\s", "_", name) for name in wanted]
    if list(own) == given:
        return
    if len(own) != len(given):
        raise InvalidValue(f"it reads {len(own)} features, the model has {len(given)}")
    place = next(number for number, pair in enumerate(zip(own, given, strict=True)) if pair[0] != pair[1])
    raise InvalidValue(f"its feature {place} is '{own[place]}', the model's is '{given[place]}'")


def parse_forest(text: str) -> ForestText:
    """The forest of a text, or InvalidValue with what is wrong with it."""
    head, trees, rest = text.encode().partition(b"\n\nTree=0\n")
    _require(bool(trees) and head.startswith(b"tree\n"), "it has no trees, or does not begin as LightGBM's texts do")
    header = _lines(head.removeprefix(b"tree\n"), HEADER, "its header", IN_HEADER)
    names = tuple(name.decode() for name in header[b"feature_names"].split(b" "))
    _check_features(names, header)
    # `partition` took the newline that ends the header, the empty line and the first line of the first tree.
    blocks, tail = _blocks(b"Tree=0\n" + rest, header[b"tree_sizes"])
    _check_tail(tail)
    lines = [
        _lines(block.partition(b"\n")[2].rstrip(b"\n"), TREE, f"tree {n}", (b"num_leaves",)) for n, block in enumerate(blocks)
    ]
    _check_counts(lines)
    forest = _forest(names, b"average_output" in header, lines)
    known = (forest.decisions >= 0) & (forest.decisions < 12) & ((forest.decisions >> 2) < KINDS_OF_MISSING)
    _require(bool(known.all()), "a decision type is not one of LightGBM's")
    refuse_bad_trees(forest.nodes, forest.arrays, len(names))
    _require(float(np.abs(forest.arrays["value"]).max()) <= LARGEST_LEAF, f"a leaf is larger than {LARGEST_LEAF:g}")
    _check_sets(forest)
    return forest


def _forest(names: tuple[str, ...], averaged: bool, lines: Sequence[Mapping[bytes, bytes]]) -> ForestText:
    """The forest whose trees have these lines."""
    nodes = np.array([int(own[b"num_leaves"]) - 1 for own in lines])

    def column(name: bytes, kind: Number = pl.Int64) -> npt.NDArray[Any]:
        # LightGBM writes one zero for the nodes of a tree that has none.
        texts = [own[name] for own, count in zip(lines, nodes, strict=True) if count or name in OF_LEAVES]
        return _numbers(b" ".join(texts), name, kind).astype(np.int64 if kind is pl.Int64 else np.float64)

    arrays = {
        "feature": column(b"split_feature"), "threshold": column(b"threshold", pl.Float64),
        "left": column(b"left_child"), "right": column(b"right_child"), "value": column(b"leaf_value", pl.Float64),
    }  # fmt: skip
    return ForestText(names, averaged, nodes, arrays, column(b"decision_type"), lines)


def _numbers(text: bytes, name: bytes, kind: Number) -> Floats:
    """Numbers with one blank between them. Polars is ten times as quick as numpy here, and as exact."""
    if not text:
        return np.empty(0)
    try:
        values = pl.Series([text.decode()]).str.split(" ").explode().cast(kind, strict=True).to_numpy()
    except (UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise InvalidValue(f"a value of {name.decode()} is not a {'whole ' if kind is pl.Int64 else ''}number") from error
    _require(bool(np.isfinite(values).all()), f"a value of {name.decode()} is not finite")
    return values


def _sets(lines: Mapping[bytes, bytes], nodes: Ints, thresholds: Floats) -> dict[int, frozenset[int]]:
    """The categories that go left at each node that splits by category: their bits are set, 32 to a word."""
    if not len(nodes):
        return {}
    edges, words = (_numbers(lines[name], name, pl.Int64).astype(np.int64) for name in (b"cat_boundaries", b"cat_threshold"))
    bits = (words[:, None] >> np.arange(WORD_BITS)) & 1
    places = thresholds[nodes].astype(np.int64)
    return {
        int(node): frozenset(np.flatnonzero(bits[edges[place] : edges[place + 1]].ravel()).tolist())
        for node, place in zip(nodes, places, strict=True)
    }


# -- the checks of a text that others wrote ----------------------------------------------------------------


def _lines(text: bytes, grammar: Mapping[bytes, bytes], where: str, needed: Iterable[bytes]) -> dict[bytes, bytes]:
    """The lines `key=value` of a part: each key is one of the grammar, comes once, and has a value that fits."""
    lines: dict[bytes, bytes] = {}
    for line in text.split(b"\n"):
        key, _, value = line.partition(b"=")
        fits = key in grammar and key not in lines and re.fullmatch(grammar[key], value) is not None
        _require(fits, f"{where} has a line '{line[:60].decode(errors='replace')}' that does not belong there")
        lines[key] = value.removesuffix(b" ")
    for key in needed:
        _require(key in lines, f"{where} has no {key.decode()}")
    return lines


def _check_features(names: Sequence[str], header: Mapping[bytes, bytes]) -> None:
    last = int(header[b"max_feature_idx"])
    _require(last == len(names) - 1, f"it names {len(names)} features, and max_feature_idx is {last}")
    _require(len(set(names)) == len(names), "two of its features have the same name")
    for key in (b"feature_infos", b"monotone_constraints"):
        given = header.get(key)
        _require(given is None or given.count(b" ") + 1 == len(names), f"{key.decode()} is not one per feature")


def _blocks(data: bytes, sizes: bytes) -> tuple[list[bytes], bytes]:
    """The text of each tree, as long as `tree_sizes` says, and what follows the trees."""
    blocks, at = [], 0
    for number, size in enumerate(map(int, sizes.split(b" "))):
        block = data[at : at + size]
        begins = block.startswith(b"Tree=%d\n" % number) and block.endswith(b"\n\n") and block.count(b"\n\n\n") <= 1
        _require(len(block) == size and begins, f"tree {number} is not {size} bytes long, as tree_sizes says")
        blocks.append(block)
        at += size
    tail = data[at:]
    _require(tail.startswith(b"end of trees\n"), f"after {len(blocks)} trees, as many as tree_sizes has, it does not end")
    return blocks, tail[len(b"end of trees\n") :]


def _check_tail(tail: bytes) -> None:
    found = TAIL.fullmatch(tail)
    _require(found is not None, "what follows its trees is not as LightGBM writes it")
    assert found is not None
    try:
        decode_json(found["categories"] if found["categories"] not in (None, b"null") else b"[]", list[list[Any]])
    except msgspec.DecodeError as error:
        raise InvalidValue("its pandas_categorical is not a list of lists") from error


def _check_counts(trees: Sequence[Mapping[bytes, bytes]]) -> None:
    """Each tree has as many values of each field as its leaves need."""
    for number, lines in enumerate(trees):
        leaves = int(lines[b"num_leaves"])
        _require(1 <= leaves <= MOST_LEAVES, f"tree {number} has {leaves:,} leaves: num_leaves is 1 to {MOST_LEAVES:,}")
        for name in (*OF_NODES, *OF_LEAVES):
            wanted = leaves if name in OF_LEAVES else leaves - 1
            text = lines.get(name, b"")
            given = text.count(b" ") + 1 if text else 0
            # LightGBM 4 writes one zero for the nodes of a tree that has none; what no prediction reads may be missing.
            fits = given == wanted or (given == 0 and name not in NEEDED) or (wanted == 0 and given <= 1)
            _require(fits, f"tree {number} has {given:,} values of {name.decode()}, its leaves need {wanted:,}")


def _check_sets(forest: ForestText) -> None:
    """Sets of categories are sets; a node that splits by category names one of its tree's by its threshold."""
    ends = np.cumsum(forest.nodes)[:-1]
    by_category, thresholds = (
        np.split(forest.decisions & CATEGORICAL_BIT == 1, ends),
        np.split(forest.arrays["threshold"], ends),
    )
    for tree, lines in enumerate(forest.lines):
        sets, named = int(lines.get(b"num_cat", b"0")), thresholds[tree][by_category[tree]]
        given = [lines.get(name, b"") for name in (b"cat_boundaries", b"cat_threshold")]
        if not sets:
            _require(not len(named) and not any(given), f"tree {tree} splits by categories, and has none")
            continue
        edges, words = (_numbers(text, b"a set of categories", pl.Int64) for text in given)
        ordered = len(edges) == sets + 1 and edges[0] == 0 and bool((np.diff(edges) > 0).all())
        _require(ordered and len(words) == edges[-1], f"tree {tree} has sets of categories that do not fit its num_cat")
        _require(bool(((words >= 0) & (words < 2**32)).all()), f"tree {tree} has a set of categories that is no set")
        fits = (named == np.floor(named)) & (named >= 0) & (named < sets)
        _require(bool(fits.all()), f"tree {tree} splits by a set of categories that it does not have")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidValue(otherwise)
