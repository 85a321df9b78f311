"""A heuristic for PyTorch's AutoHeuristic: a Python module with a tree that ranks kernels of `mm`, distilled from a model.

`torch._inductor.autoheuristic` loads every module of its package `artifacts` whose name begins with `_`, makes an object of
each class in it, and asks the first one whose precondition holds. The tree reads what AutoHeuristic knows of a product (sizes,
strides, dtypes, TF32). Its leaves list kernels by the names that AutoHeuristic gives them, best first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl

from kerncast.answering.exporters import Exporter, LossOf, MostOf
from kerncast.answering.exporters.lookup_table import DTYPES, FAMILY, PLAIN
from kerncast.core.arrays import Floats, Ints
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.quoting import python_comment, python_literal
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.learning.learners.trees import Tree
from kerncast.library import devices
from kerncast.models.answer import Tier
from kerncast.models.limits.configs import reach_of
from kerncast.models.model import Model
from kerncast.native.lower import lower
from kerncast.native.tiers.build import PortfolioScores, TierOptions
from kerncast.native.tiers.contents import Tiers
from kerncast.native.tiers.distill import LEAST_WEIGHT, Evidence, examples_of, parts_of
from kerncast.native.tiers.smallest_set import model_portfolio
from kerncast.native.tiers.teaching import Material, grow
from kerncast.version import __version__

NAME = "mm"
LIBRARY = "extern_mm"
CLASS = "KerncastMM"
MOST_LEAVES = 256
# Inductor times ten of those that it offers, and it does not offer every config that was measured.
LISTED = 20
# Python refuses a hundred levels of indentation; deeper subtrees become functions of their own.
DEEPEST = 20
NOT_FP32 = "not_float_32"
SIZES = {"m": "M", "k": "K", "n": "N"}


@dataclass(frozen=True)
class HeuristicOptions:
    """The portfolio that the tree chooses from, and how many kernels a leaf lists."""

    loss: LossOf = TierOptions.loss
    max_configs: MostOf = TierOptions.most
    top_k: Annotated[int, Help(f"kernels of each leaf. [default: {LISTED}]", metavar="K", least=1)] = LISTED


class AutoHeuristicExporter(Exporter):
    """A module with a tree for Inductor."""

    name = "autoheuristic"
    doc = "a module for PyTorch's AutoHeuristic"
    options_type = HeuristicOptions

    def check(self, out: Path) -> None:
        """Refuse a file that the loader would pass over."""
        if not re.fullmatch(r"_[A-Za-z0-9_]*\.py", out.name):
            raise InvalidValue(f"AutoHeuristic loads modules whose names begin with '_' and end in .py, got '{out.name}'")

    def write(self, model: Model, out: Path, options: HeuristicOptions, progress: Progress) -> list[Path]:
        heuristic = distill_heuristic(model, TierOptions(options.loss, options.max_configs), options.top_k, progress=progress)
        # The name must be one that the loader takes.
        write_bytes(out, python_source(model, heuristic).encode("ascii"))
        progress.say(str(heuristic))
        return [out]


@dataclass(frozen=True)
class Heuristic:
    """A tree over AutoHeuristic's features, and how its first choices do where they were measured."""

    tree: Tree
    lists: tuple[tuple[tuple[float, int], ...], ...]
    """By leaf: the expected efficiency and the place in `choices`, best first."""
    choices: tuple[str, ...]
    features: tuple[str, ...]
    conditions: tuple[str, ...]
    """Python expressions that must all hold for the heuristic to answer."""
    problems: int
    """How many measured problems the figures are of."""
    held_out: bool
    efficiency: float
    """Best measured time over that of the tree's first choice, on average."""
    own_efficiency: float | None
    """The same of the model itself, out of fold; None: it was trained without folds."""

    def __str__(self) -> str:
        of = "held-out" if self.held_out else "training"
        own = "" if self.own_efficiency is None else f", the model itself {self.own_efficiency:.1%}"
        return (
            f"the tree ({len(self.lists):,} leaves, {len(self.choices):,} kernels) reaches {self.efficiency:.1%} of the best "
            f"measured time on {self.problems:,} {of} problems{own}"
        )


def distill_heuristic(model: Model, options: TierOptions, listed: int = LISTED, *, progress: Progress = QUIET) -> Heuristic:
    """Teach a tree what the model would choose for `mm`, on measured and made-up problems."""
    if model.family.id != FAMILY:
        raise InvalidValue(f"AutoHeuristic's mm chooses configs of {FAMILY}, but the model is for {model.family.id}")
    conditions = _conditions(model)
    progress.stage("choosing the portfolio")
    portfolio = _known_choices(model, model_portfolio(model, options.loss, options.most))
    progress.stage("asking the model about problems like those it was trained on")
    evidence = Evidence.of(model)
    score = PortfolioScores(lower(model, Tiers(portfolio, reach=reach_of(model)), [Tier.PORTFOLIO]))
    rng = np.random.default_rng(options.seed)
    examples = examples_of(evidence, portfolio, score, options.samples_for(portfolio), rng)
    usable = np.flatnonzero(_is_mm(examples.problems))
    if not len(usable):
        raise InvalidValue(f"{model.path} knows no product that AutoHeuristic is asked about: one mm without bias, C packed")
    problems = examples.problems[usable]
    columns = context_columns(problems)
    features, costs = np.column_stack(list(columns.values())), examples.costs[usable]
    grows, prunes, judges = parts_of(examples.group[usable], options.seed)
    progress.stage("growing the tree")
    material = Material(features, costs, np.ones(len(features)))
    tree = grow(material.take(np.flatnonzero(grows)), MOST_LEAVES, LEAST_WEIGHT, material.take(np.flatnonzero(prunes)))
    leaf = tree.leaf_of(features)
    everything = _ranked(costs, leaf, len(tree.value), listed)
    # What is judged must not have been ranked on the problems that judge it.
    fitted = _ranked(costs[~judges], leaf[~judges], len(tree.value), listed) if not judges.all() else everything
    known = np.flatnonzero(judges & (usable < len(evidence.measured.solvable)))
    efficiency, own, count = _judged(evidence, portfolio, usable[known], [fitted[number] for number in leaf[known]])
    return Heuristic(
        tree, tuple(everything), tuple(_choice(model, row) for row in portfolio), tuple(columns), conditions,
        count, not judges.all(), efficiency, own,
    )  # fmt: skip


def context_columns(problems: pl.DataFrame) -> dict[str, Floats]:
    """What AutoHeuristic knows of `mm`, by its own names; `NAME=LABEL` is 1 where a label holds."""
    m, k, n = (problems[f"problem.{name}"].to_numpy().astype(np.float64) for name in SIZES.values())
    layout, ones = problems["problem.layout"], np.ones(problems.height)
    a_rows, b_rows = (layout.str.slice(place, 1) == "r" for place in (0, 1))
    lda, ldb = (problems[f"problem.{name}"].fill_null(0).to_numpy().astype(np.float64) for name in ("lda", "ldb"))
    lda = np.where(lda > 0, lda, np.where(a_rows, k, m))
    ldb = np.where(ldb > 0, ldb, np.where(b_rows, n, k))
    found = {
        "m": m, "k": k, "n": n, "m*k": m * k, "m*n": m * n, "k*n": k * n,
        "arith_intensity": m * k * n / (m * k + k * n + m * n),
        "mat1_stride_0": np.where(a_rows, lda, ones), "mat1_stride_1": np.where(a_rows, ones, lda),
        "mat2_stride_0": np.where(b_rows, ldb, ones), "mat2_stride_1": np.where(b_rows, ones, ldb),
    }  # fmt: skip
    dtype = problems["problem.dtype"]
    for name in sorted(set(dtype)):
        found[f"mat1_dtype={DTYPES[name]}"] = (dtype == name).to_numpy().astype(np.float64)
    rounds = problems["problem.tf32"].fill_null(False)
    found["using_tf32=True"] = ((dtype == "fp32") & rounds).to_numpy().astype(np.float64)
    return found


def _is_mm(problems: pl.DataFrame) -> Sequence[bool]:
    """One product, alone, with C packed, of a type that Inductor's mm has."""
    plain = (
        (pl.col("problem.batch") == 1)
        & ~pl.col("problem.bias").fill_null(False)
        & (pl.col("problem.activation").fill_null("none") == "none")
        & (pl.col("problem.ldc").fill_null(0) == 0)
        & pl.col("problem.dtype").is_in(list(DTYPES))
    )
    return problems.select(plain).to_series().to_list()


def _conditions(model: Model) -> tuple[str, ...]:
    """The GPU, as AutoHeuristic tells them apart, and the range that the model was trained on."""
    device = model.device
    hull, dtypes = model.manifest.hull, [DTYPES[name] for name in model.manifest.dtypes if name in DTYPES]
    ranges = [
        f"{python_literal(int(span.low))} <= context.get_value({python_literal(name)}) <= {python_literal(int(span.high))}"
        for name, own in SIZES.items()
        if (span := hull.get(own)) is not None and span.low is not None and span.high is not None
    ]
    return (
        *_gpu(device),
        f"str(context.get_value('mat1_dtype')) in ({', '.join(map(python_literal, dtypes))},)",
        "str(context.get_value('mat2_dtype')) == str(context.get_value('mat1_dtype'))",
        *ranges,
    )


def _gpu(device: Device) -> tuple[str, str]:
    memory = device.numbers.get("smem_per_block_bytes")
    # A model keeps the numbers of its device; what compilers call the chip is in the profile.
    profile = devices.profiles().get(device.name, device)
    found = re.fullmatch(r"sm_(\d+)(\d)", device.architecture or profile.architecture or "", re.ASCII)
    if memory is None or found is None:
        raise InvalidValue(
            f"AutoHeuristic knows a GPU by its compute capability and its shared memory per block, and the profile of "
            f"{device.name} lacks one of them: export a lookup table instead"
        )
    capability = str((int(found[1]), int(found[2])))
    return (
        f"metadata.shared_memory == {python_literal(int(memory))}",
        f"str(metadata.device_capa) == {python_literal(capability)}",
    )


def _known_choices(model: Model, portfolio: Sequence[int]) -> tuple[int, ...]:
    """The configs that AutoHeuristic has a name for: the library and plain tiles, each once."""
    found: dict[str, int] = {}
    for row in portfolio:
        if _values(model, row).get("template") in PLAIN:
            found.setdefault(_choice(model, row), row)
    if not found:
        raise InvalidValue(f"{model.path} has no config that AutoHeuristic has a name for: export a lookup table instead")
    return tuple(found.values())


def _values(model: Model, row: int) -> Mapping[str, object]:
    values = model.candidates.row(row, named=True)
    return {name.removeprefix("config."): value for name, value in values.items()}


def _choice(model: Model, row: int) -> str:
    """A config as AutoHeuristic names it."""
    values = _values(model, row)
    if values["kind"] == "library":
        return LIBRARY
    return (
        f"type=triton_BLOCK-M={values['BLOCK_M']}_BLOCK-K={values['BLOCK_K']}_BLOCK-N={values['BLOCK_N']}"
        f"_numstages={values['num_stages']}_numwarps={values['num_warps']}"
    )


def _ranked(costs: Floats, leaf: Ints, leaves: int, listed: int) -> list[tuple[tuple[float, int], ...]]:
    """By leaf: the choices that are best on average over its problems; those that never work are left out."""
    found = []
    overall = 1.0 - costs.mean(axis=0)
    for number in range(leaves):
        inside = costs[leaf == number]
        mean = 1.0 - inside.mean(axis=0) if len(inside) else overall
        order = np.lexsort((np.arange(len(mean)), -mean))[:listed]
        found.append(tuple((round(float(mean[place]), 4), int(place)) for place in order if mean[place] > 0))
    return found


def _judged(
    evidence: Evidence, portfolio: Sequence[int], problems: Ints, lists: Sequence[Sequence[tuple[float, int]]]
) -> tuple[float, float | None, int]:
    """The mean efficiency of the first listed choice that was tried on each problem, the model's own, and their number."""
    measured = evidence.measured
    numbers = measured.solvable[problems]
    shares = measured.shares[numbers][:, list(portfolio)]
    tree = np.array([
        next((share[place] for _, place in choices if not np.isnan(share[place])), np.nan)
        for share, choices in zip(shares, lists, strict=True)
    ])  # fmt: skip
    known = ~np.isnan(tree)
    if not known.any():
        raise InvalidValue("none of the kernels that the tree lists was measured on a held-out problem: measure more problems")
    own = None
    if measured.score is not None:
        place = {int(number): at for at, number in enumerate(measured.trials.problems)}
        rows = measured.trials.choose(measured.score)[[place[int(number)] for number in numbers[known]]]
        own = float(measured.trials.share[rows].mean())
    return float(tree[known].mean()), own, int(known.sum())


# -- the module ----------------------------------------------------------------------------------------


def python_source(model: Model, heuristic: Heuristic) -> str:
    """The text of the module; what comes from data is in it as literals and comments."""
    manifest = model.manifest
    return "\n".join([
        python_comment(f"Generated by kerncast {__version__} from a model of {manifest.family} on {manifest.device.name}."),
        python_comment(f"The model's checksum is {manifest.checksum}: export it again instead of changing this file."),
        python_comment(f"Measured: {heuristic}."),
        "from torch._inductor.autoheuristic.autoheuristic_utils import AHContext, AHMetadata, Choice",
        "from torch._inductor.autoheuristic.learnedheuristic_interface import LearnedHeuristicDecision",
        "",
        "",
        f"class {CLASS}(LearnedHeuristicDecision):",
        "    def __init__(self) -> None:",
        "        self.choices: list[Choice] = [",
        *(f"            {python_literal(choice)}," for choice in heuristic.choices),
        "        ]",
        "",
        "    def get_name(self) -> str:",
        f"        return {python_literal(NAME)}",
        "",
        "    def get_confidence_threshold(self) -> float:",
        "        return 0.0",
        "",
        "    def check_precondition(self, metadata: AHMetadata, context: AHContext) -> bool:",
        "        return (",
        "            metadata.name == self.get_name()",
        *(f"            and {condition}" for condition in heuristic.conditions),
        "        )",
        "",
        "    def get_choice(self, idx: int) -> str | None:",
        "        return self.choices[idx] if idx < len(self.choices) else None",
        "",
        *_functions(heuristic),
        "",
    ])  # fmt: skip


def _functions(heuristic: Heuristic) -> Iterator[str]:
    """`get_best_choices`, and a function for every subtree that is too deep to be indented."""
    returns = "-> list[tuple[float, int]] | None:"
    waiting, number = [("get_best_choices", 0 if len(heuristic.tree.feature) else -1)], 0
    while waiting:
        name, root = waiting.pop(0)
        yield f"    def {name}(self, context: AHContext) {returns}"
        stack: list[tuple[int, int, str]] = [(root, 2, "")]
        while stack:
            node, depth, before = stack.pop()
            if before:
                yield f"{'    ' * (depth - 1)}{before}"
            indent = "    " * depth
            if node < 0:
                listed = ", ".join(f"({python_literal(share)}, {place})" for share, place in heuristic.lists[-1 - node])
                yield f"{indent}return [{listed}]"
            elif depth > DEEPEST:
                number += 1
                waiting.append((f"branch_{number}", node))
                yield f"{indent}return self.branch_{number}(context)"
            else:
                yield f"{indent}if {_test(heuristic, node)}:"
                stack.append((int(heuristic.tree.right[node]), depth + 1, "else:"))
                stack.append((int(heuristic.tree.left[node]), depth + 1, ""))
        if waiting:
            yield ""


def _test(heuristic: Heuristic, node: int) -> str:
    """The condition of a node, true for its left side."""
    name = heuristic.features[int(heuristic.tree.feature[node])]
    feature, _, label = name.partition("=")
    if label:
        return f"str(context.get_value({python_literal(feature)})) != {python_literal(label)}"
    return f"context.get_value({python_literal(feature)}) <= {python_literal(float(heuristic.tree.threshold[node]))}"
