"""LightGBM's text of a forest: read and checked here before LightGBM or C sees it.

LightGBM trusts its text: a child that does not exist, a count that is not that of the numbers, or a tree that leads back to
itself ends the process or never ends. So the whole text must follow the grammar below, and every tree must be one.
`load_forest` is the only way from a file to a booster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.arrays import Floats, Ints
from kerncast.errors import BadFile, InvalidValue
from kerncast.files.foreign import FOREST, decode_json, gunzip
from kerncast.learners.category_splits import without_categories
from kerncast.learners.trees import Tree, cut, refuse_bad_trees

if TYPE_CHECKING:
    from lightgbm import Booster

CATEGORICAL_BIT = 1
# Bits 2 and 3 of a decision say what counts as missing: nothing, zero or NaN.
ZERO_IS_MISSING, KINDS_OF_MISSING = 1, 3
VERSIONS = ("v2", "v3", "v4")
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

NUMBER = rb"-?\d+(?:\.\d+)?(?:e[-+]?\d{1,4})?"
# The characters of whole numbers, of numbers, and of statistics of training, which no prediction reads.
WHOLE, NUMBERS, STATISTICS = b"0123456789- ", b"0123456789-+.e ", b"0123456789-+.einfa "
# By field of a tree: its characters. It has a value per node, or per leaf.
OF_NODES = {
    "split_feature": WHOLE, "split_gain": STATISTICS, "threshold": NUMBERS, "decision_type": WHOLE, "left_child": WHOLE,
    "right_child": WHOLE, "internal_value": STATISTICS, "internal_weight": STATISTICS, "internal_count": WHOLE,
}  # fmt: skip
OF_LEAVES = {"leaf_value": NUMBERS, "leaf_weight": STATISTICS, "leaf_count": WHOLE}
SINGLE = ("num_leaves", "num_cat", "is_linear", "shrinkage")
OF_CATEGORIES = ("cat_boundaries", "cat_threshold")
# Without these there is no tree; LightGBM leaves others out in older versions.
NEEDED = ("split_feature", "threshold", "decision_type", "left_child", "right_child", "leaf_value")
HEADER = (
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective", "average_output",
    "feature_names", "monotone_constraints", "feature_infos", "tree_sizes",
)  # fmt: skip
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
    sets: tuple[dict[int, frozenset[int]], ...]
    """By tree: the categories that go left at each node that splits by category."""

    def trees(self) -> tuple[Tree, ...]:
        """The trees in the order in which their values are added; splits that C could not reproduce are refused.

        Splits by category become comparisons.
        """
        if self.averaged:
            raise InvalidValue("a random forest averages its trees, which exported C does not support: train with boosting")
        missing = (self.decisions >> 2) & KINDS_OF_MISSING
        if (missing[(self.decisions & CATEGORICAL_BIT) == 0] == ZERO_IS_MISSING).any():
            raise InvalidValue("the forest has zero-as-missing splits, which C does not support")
        plain = zip(cut(self.nodes, self.arrays), self.sets, strict=True)
        return tuple(without_categories(tree, sets).preorder() for tree, sets in plain)


def read_trees(text: str) -> tuple[Tree, ...]:
    """The trees of one booster, in the order in which their values are added."""
    return parse_forest(text).trees()


def load_forest(file: Path, names: Sequence[str] | None = None, remedy: str = "train the model again") -> Booster:
    """The booster of a file (gzip, or plain text); its features must be `names`, if they are given."""
    from lightgbm import Booster
    from lightgbm.basic import LightGBMError

    try:
        data = gunzip(file, FOREST) if file.suffix == ".gz" else FOREST.read(file)
        text = data.decode()
        found = parse_forest(text)
        if names is not None:
            refuse_other_names(found.names, names)
        return Booster(model_str=text)
    except (OSError, ValueError, LightGBMError) as error:
        raise BadFile(f"{file} is damaged ({error}): restore it, or {remedy}") from error


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
    data = text.encode()
    head, found, rest = data.partition(b"\n\nTree=0\n")
    _require(bool(found), "it has no trees, or does not begin as LightGBM's texts do")
    header = _header(head)
    names = tuple(name.decode() for name in header["feature_names"].split(b" "))
    # `partition` took the newline that ends the header, the empty line and the first line of the first tree.
    blocks, tail = _blocks(b"Tree=0\n" + rest, header["tree_sizes"])
    _check_tail(tail)
    fields = [_fields(number, block) for number, block in enumerate(blocks)]
    leaves = np.array([_whole(own, "num_leaves", 1, MOST_LEAVES + 1) for own in fields])
    for own in fields:
        _require(own.get("is_linear", b"0") == b"0", "it has linear leaves, which kerncast does not support")
        _require(re.fullmatch(NUMBER, own.get("shrinkage", b"1")) is not None, "a shrinkage is not a number")
    columns = {name: _column(fields, name, characters, leaves - 1) for name, characters in OF_NODES.items()}
    columns |= {name: _column(fields, name, characters, leaves) for name, characters in OF_LEAVES.items()}
    decisions = columns["decision_type"].astype(np.int64)
    _require(
        bool(((decisions >= 0) & (decisions < 12) & ((decisions >> 2) < KINDS_OF_MISSING)).all()),
        "a decision type is not one of LightGBM's",
    )
    arrays: dict[str, npt.NDArray[Any]] = {
        "feature": columns["split_feature"].astype(np.int64), "threshold": columns["threshold"],
        "left": columns["left_child"].astype(np.int64), "right": columns["right_child"].astype(np.int64),
        "value": columns["leaf_value"],
    }  # fmt: skip
    refuse_bad_trees(leaves - 1, arrays, len(names))
    _require(float(np.abs(arrays["value"]).max()) <= LARGEST_LEAF, f"a leaf is larger than {LARGEST_LEAF:g}")
    sets = _categories(fields, leaves - 1, decisions, arrays["threshold"])
    return ForestText(names, "average_output" in header, leaves - 1, arrays, decisions, sets)


# -- the parts of a text -------------------------------------------------------------------------------


def _header(head: bytes) -> dict[str, bytes]:
    first, *lines = head.split(b"\n")
    _require(first == b"tree", f"its first line is {first[:40]!r}, not 'tree'")
    header: dict[str, bytes] = {}
    for line in lines:
        key, _, value = line.partition(b"=")
        name = key.decode(errors="replace")
        _require(name in HEADER and name not in header, f"its header has a line {name[:40]!r} that does not belong there")
        header[name] = value
    for name in ("version", "num_class", "num_tree_per_iteration", "max_feature_idx", "feature_names", "tree_sizes"):
        _require(name in header, f"its header has no {name}")
    _require(header["version"].decode(errors="replace") in VERSIONS, f"its version is {header['version'][:40]!r}")
    for name in ("num_class", "num_tree_per_iteration"):
        _require(header[name] == b"1", f"{name} is {header[name][:40].decode(errors='replace')}, and only 1 is supported")
    _require(header.get("label_index", b"0").isdigit(), "label_index is not a number")
    count, last = header["feature_names"].count(b" ") + 1, _whole(header, "max_feature_idx", 0, 2**31)
    _require(last == count - 1, f"it names {count} features, and max_feature_idx is {last}")
    _require(len(set(header["feature_names"].split(b" "))) == count, "two of its features have the same name")
    for name in ("feature_infos", "monotone_constraints"):
        _require(name not in header or header[name].count(b" ") + 1 == count, f"{name} is not one per feature")
    _require(not header.get("monotone_constraints", b"").translate(None, WHOLE), "monotone_constraints are not whole numbers")
    if "objective" in header:
        words = header["objective"].split(b" ")
        known = words[0].decode(errors="replace") in OBJECTIVES
        plain = all(re.fullmatch(rb"sqrt|[a-z_]+:" + NUMBER, word) for word in words[1:])
        _require(known and plain, f"its objective {header['objective'][:60]!r} is not one with a single output")
    return header


def _blocks(data: bytes, sizes: bytes) -> tuple[list[bytes], bytes]:
    """The text of each tree, as long as `tree_sizes` says, and what follows the trees."""
    _require(re.fullmatch(rb"\d{1,12}(?: \d{1,12})*+", sizes) is not None, "tree_sizes are not whole numbers")
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


def _fields(number: int, block: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for line in block.rstrip(b"\n").split(b"\n")[1:]:
        key, equals, value = line.partition(b"=")
        name = key.decode(errors="replace")
        known = name in SINGLE or name in OF_NODES or name in OF_LEAVES or name in OF_CATEGORIES
        _require(
            bool(equals) and known and name not in found, f"tree {number} has a line {name[:40]!r} that does not belong there"
        )
        found[name] = value.removesuffix(b" ")
    for name in ("num_leaves", *NEEDED):
        alone = found.get("num_leaves") == b"1" and name in OF_NODES
        _require(name in found or alone, f"tree {number} has no {name}")
    return found


def _check_tail(tail: bytes) -> None:
    found = TAIL.fullmatch(tail)
    _require(found is not None, "what follows its trees is not as LightGBM writes it")
    assert found is not None
    try:
        decode_json(found["categories"] if found["categories"] not in (None, b"null") else b"[]", list[list[Any]])
    except msgspec.DecodeError as error:
        raise InvalidValue("its pandas_categorical is not a list of lists") from error


def _column(fields: list[dict[str, bytes]], name: str, characters: bytes, counts: Ints) -> Floats:
    """One field of all trees, one after the other; empty for what no prediction reads."""
    texts = [own.get(name, b"") for own in fields]
    given = np.array([text.count(b" ") + 1 if text else 0 for text in texts])
    # LightGBM 4 writes one zero for the nodes of a tree that has none.
    wrong = np.flatnonzero((given != counts) & ~((counts == 0) & (given <= 1)))
    if name not in NEEDED:
        wrong = wrong[given[wrong] > 0]
    if len(wrong):
        tree = int(wrong[0])
        raise InvalidValue(f"tree {tree} has {given[tree]:,} values of {name}, its leaves need {counts[tree]:,}")
    joined = b" ".join(text for text, count in zip(texts, counts, strict=True) if text and count)
    _require(not joined.translate(None, characters), f"a value of {name} is not a number, or not finite")
    if name not in NEEDED or not joined:
        return np.empty(0)
    return _numbers(joined, name, pl.Int64 if characters is WHOLE else pl.Float64)


def _numbers(text: bytes, name: str, kind: type[pl.Int64 | pl.Float64]) -> Floats:
    """Numbers with one blank between them. Polars is ten times as quick as numpy here, and as exact."""
    try:
        values = pl.Series([text.decode()]).str.split(" ").explode().cast(kind, strict=True).to_numpy()
    except (UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise InvalidValue(f"a value of {name} is not a {'whole ' if kind is pl.Int64 else ''}number") from error
    _require(bool(np.isfinite(values).all()), f"a value of {name} is not finite")
    return values


def _categories(
    fields: list[dict[str, bytes]], nodes: Ints, decisions: Ints, thresholds: Floats
) -> tuple[dict[int, frozenset[int]], ...]:
    """By tree: the categories of each node that splits by category; it names a set among those of its tree."""
    own = np.split(decisions & CATEGORICAL_BIT == 1, np.cumsum(nodes)[:-1])
    asked = np.split(thresholds, np.cumsum(nodes)[:-1])
    found: list[dict[int, frozenset[int]]] = []
    for number, field in enumerate(fields):
        found.append({})
        sets = _whole(field, "num_cat", 0, 2**31) if "num_cat" in field else 0
        if not sets:
            given = [name for name in OF_CATEGORIES if field.get(name)]
            _require(not own[number].any() and not given, f"tree {number} splits by categories, and has none")
            continue
        edges, words = (_integers(field, name, number) for name in OF_CATEGORIES)
        ordered = len(edges) == sets + 1 and edges[0] == 0 and bool((np.diff(edges) > 0).all())
        _require(ordered and len(words) == edges[-1], f"tree {number} has sets of categories that do not fit its num_cat")
        _require(bool(((words >= 0) & (words < 2**32)).all()), f"tree {number} has a set of categories that is no set")
        wanted = asked[number][own[number]]
        named = (wanted == np.floor(wanted)) & (wanted >= 0) & (wanted < sets)
        _require(bool(named.all()), f"tree {number} splits by a set of categories that it does not have")
        for node in np.flatnonzero(own[number]):
            place = int(asked[number][node])
            found[-1][int(node)] = _members(words[edges[place] : edges[place + 1]])
    return tuple(found)


def _members(words: Ints) -> frozenset[int]:
    """The categories whose bits are set, 32 to a word."""
    bits = (words[:, None] >> np.arange(WORD_BITS)) & 1
    return frozenset(np.flatnonzero(bits.ravel()).tolist())


def _integers(field: dict[str, bytes], name: str, tree: int) -> Ints:
    _require(bool(field.get(name)), f"tree {tree} has no {name}")
    return _numbers(field[name], name, pl.Int64).astype(np.int64)


def _whole(fields: dict[str, bytes], name: str, low: int, high: int) -> int:
    text = fields[name]
    _require(re.fullmatch(rb"\d{1,10}", text) is not None and low <= int(text) < high, f"{name} is {text[:40]!r}")
    return int(text)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidValue(otherwise)
