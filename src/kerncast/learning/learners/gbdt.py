"""`gbdt`: gradient-boosted trees (LightGBM), one forest for times and one for order. The default.

The `time` forest regresses the target. The `rank` forest learns only the order within a problem: its
scores, through a softmax, should be the distribution exp(-regret / temperature) over the problem's configs,
so configs within the noise of the best share the weight and slow ones do not matter. The two are blended for
choosing. Where a vendor's library is one of the candidates, `library` trees adjust its score. If some
attempts failed although they obey the family's rules, a `valid` forest learns which, and configs that it expects to fail are
chosen last.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import msgspec
import numpy as np
from msgspec import Meta

from kerncast.core.arrays import Flags, Floats
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import (
    WORTH_THREADS,
    Boosted,
    Fitting,
    Learner,
    LearnerOptions,
    Output,
    Target,
    damaged,
    read_arrays,
    set_aside,
    write_arrays,
)
from kerncast.learning.learners.growing import (
    BLEND,
    TEMPERATURE,
    Bins,
    ForestTask,
    Grower,
    PartOfTable,
    grow_library_trees,
    has_many_rows,
    rank_task,
    time_task,
    valid_task,
)
from kerncast.learning.learners.leaf_shift import shifted
from kerncast.learning.learners.lightgbm_text import load_forest, read_trees
from kerncast.learning.learners.own_trees import Kinds, branches, grown, identifying, joined, telling_apart, without
from kerncast.learning.learners.packed_forest import PackedForest, packed, unpacked
from kerncast.learning.learners.trees import Tree, as_arrays, from_arrays, sum_of
from kerncast.learning.table import Table

if TYPE_CHECKING:
    from lightgbm import Booster


FORESTS = ("time", "rank", "valid")
TARGET = "target.npz"
LIBRARY = "library.npz"
# All forests in one file, instead of a text for each: the same sums without LightGBM.
PACKED = "forests.npz"
# Configs that are more likely to fail than not (negative log odds of working) come after all others.
LIKELY_TO_FAIL = 0.0
BEHIND = 1e3
# Fewer failures than this teach nothing that generalises to another problem.
FEWEST_FAILURES = 20
# With this many rows and groups the default number of trees is used without a search, which would double the work. On A100
# matmuls (570 groups, five folds of another seed) the search chose 105 to 266 of 300 trees for the order, and the choices
# were as good as with all 300: 0.000 % apart, 95 % interval -0.046 to 0.042.
MANY_GROUPS = 200
# A rough fit of many rows has a third of the trees at three times the rate. Forests of times alone are large, so for them it
# is worth it from fewer rows on.
ROUGH = 3
WORTH_ROUGH = 5_000


def _resolved(options: GbdtOptions, table: Table, rough: bool) -> GbdtOptions:
    """Defaults for the knobs that were left open, from the shape of the data."""
    choosing = table.trials.choosing and not options.times_only
    found = msgspec.structs.replace(
        options,
        blend=blend_for(len(np.unique(table.group))) if options.blend is None else options.blend,
        trees=options.trees or (300 if choosing else 700),
        leaves=options.leaves or (63 if choosing else 127),
        lr=options.lr or (0.08 if choosing else 0.05),
        bags=options.bags or (bags_for(len(table.ok)) if choosing else 1),
    )
    if not rough:
        return found
    assert found.trees is not None  # decided above
    assert found.lr is not None
    own = -(-found.own_trees // ROUGH)
    return msgspec.structs.replace(found, trees=-(-found.trees // ROUGH), lr=min(1.0, ROUGH * found.lr), bags=1, own_trees=own)


def _search(given: GbdtOptions, table: Table) -> bool:
    """Whether to search for the number of trees. The default is good enough for many groups; a given one may not be."""
    if not given.early_stopping:
        return False
    open_ = given.trees is None and given.leaves is None and given.lr is None
    return not (open_ and has_many_rows(table) and len(np.unique(table.group)) >= MANY_GROUPS)


def bags_for(rows: int) -> int:
    """Four forests for the order up to 20,000 rows, three up to 30,000, two up to 60,000, then one.

    With few problems a single forest depends on luck, and more are cheap. Measured on CPU GEMMs: two forests choose
    configs about 0.5 % faster than one with 51,000 rows of 300 problems, four 0.2 to 1 % faster with 7,000 of 44.
    """
    return 1 + min(3, 60_000 // max(rows, 1))


def blend_for(groups: int) -> float:
    """The weight of the order in the choice: 60 % at 50 groups of problems, 93 % at 500, 99 % at 5,000.

    Measured: with 35 groups of CPU GEMMs 60 % chooses best, with 570 of A100 matmuls 95 to 100 %.
    """
    return float(1.0 - 0.4 * min(1.0, (50.0 / groups) ** 0.75))


class GbdtOptions(LearnerOptions, frozen=True):
    """Knobs of `gbdt`."""

    trees: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="maximum trees in each forest")] = None
    """The maximum in each forest; early stopping may use fewer. 300, or 700 where there is nothing to choose: then one row
    is predicted at a time, and a large forest is cheap. With at least 200 groups and more than 20,000 rows, if trees,
    leaves and lr are left open, all of them are used."""
    leaves: Annotated[Annotated[int, Meta(ge=2)] | None, Meta(description="leaves of a tree")] = None
    """63, or 127 where there is nothing to choose."""
    bags: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="forests for the order (for times, with nothing to choose), averaged"),
    ] = None
    """Forests for the order, or for times where there is nothing to choose, each grown on different samples of the rows and
    then averaged. By default 1, or up to 4 if there are few rows to learn an order from."""
    lr: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="learning rate")] = None
    """0.08, or 0.05 where there is nothing to choose."""
    temperature: Annotated[float, Meta(gt=0, description=TEMPERATURE)] = 0.02
    blend: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, Meta(description=BLEND)] = None
    """By default it grows with the number of groups: order is learned from few rows of each problem, so learning it takes
    more problems than learning times."""
    medians: Annotated[bool, Meta(description="learn the median of similar rows, not the mean: wrong rows count less")] = False
    times_only: Annotated[bool, Meta(description="learn times only, and choose by predicted time: no forest for the order")] = (
        False
    )
    early_stopping: Annotated[
        bool, Meta(description="let held-out groups decide how many trees are enough; false: grow all of them")
    ] = True
    """False saves the fit that looks for the number of trees: with many rows and a small learning rate, all are needed."""
    own_trees: Annotated[
        int, Meta(ge=0, description="more trees for each device, grown on the errors of the forest of all devices")
    ] = 0
    """Where times alone are learned. Devices whose profiles agree in all numbers that the features read share theirs. Such a
    forest cannot be continued."""
    own_loss: Annotated[Literal["squares", "absolute"], Meta(description="loss of the own trees: squares or absolute")] = (
        "squares"
    )
    """`absolute`: they alone learn medians, which rare slow measurements do not move. One fold of the H200's fp8 GEMMs, pairs
    (N, K) unseen, 60 trees after 60 of squares: SGLang's table, where single rows took twice as long as their neighbours, 6.0 %
    instead of 6.8 %; vLLM's 3.27 % instead of 3.28 %."""
    library_trees: Annotated[
        int, Meta(ge=0, description="trees that judge the vendor's library as a candidate; 0: leave it to the other forests")
    ] = 100


class Gbdt(Learner):
    """Forests for time, order and validity."""

    kind = "gbdt"
    doc = "gradient-boosted trees: one forest for times, one for order within a problem (LightGBM)"
    options_type = GbdtOptions
    options: GbdtOptions
    continues = True
    side_by_side = True
    names_: tuple[str, ...] = ()
    library_: tuple[Tree, ...] = ()
    categorical_: tuple[str, ...] = ()
    """The features that are split by category rather than by size: none, unless a caller or a base has some."""
    threads_ = 0
    gains_: dict[str, float] | None = None
    """What the features were worth to the forest of all devices, before it got trees of their own."""

    def moved(self, rows: Rows, labels: Floats, weight: Floats, seed: int) -> Self:
        """The same learner for another device, from a few rows measured there: it predicts times, and chooses by them.

        The order that it learned elsewhere is left out: a few rows of one device do not correct it.
        """
        bags = self.trees["time"]
        every = [replace(tree, value=tree.value / len(bags)) for bag in bags for tree in bag]
        here = [bool(tree.leaf_values(rows.features).any()) for tree in every]
        trees = [tree for tree, says in zip(every, here, strict=True) if says]
        # Trees of other devices say nothing here by themselves; the rows may say which of these devices this one is like.
        others = branches([tree for tree, says in zip(every, here, strict=True) if not says], identifying(rows))
        misses = labels - sum_of(trees, rows.features)
        forests = {"time": [shifted(trees, others, rows, misses, weight, seed)]}
        if "valid" in self.trees:
            forests["valid"] = [tuple(bag) for bag in self.trees["valid"]]
        found = type(self)(msgspec.structs.replace(self.options, blend=0.0, library_trees=0))
        found.names_, found.target_ = self.names_, self.target_
        found.forests_ = {name: list(bag) for name, bag in unpacked(packed(forests, self.names_))[1].items()}
        return found

    @property
    def packed(self) -> bool:
        """Whether its forests are packed: they predict, and cannot be continued."""
        return any(isinstance(forest, PackedForest) for bag in self.forests_.values() for forest in bag)

    @property
    def boosters(self) -> dict[str, list[Booster]]:
        """The forests as LightGBM has them; packed ones are refused."""
        if self.packed:
            raise InvalidValue("packed forests are read without LightGBM: use the model that they were made from")
        return cast("dict[str, list[Booster]]", self.forests_)

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        alone = not table.trials.choosing or self.options.times_only
        rough = fitting.rough and (has_many_rows(table) or (alone and len(table.ok) > WORTH_ROUGH))
        self.options, given = _resolved(self.options, table, rough), self.options
        self.names_, self.target_ = table.rows.names, fitting.target
        if base is not None:
            self.categorical_ = base.categorical_
        # What the base learned about failures or order is kept if the new data have nothing on it.
        self.forests_: dict[str, list[Booster | PackedForest]] = {}
        if base is not None:
            self.forests_ |= {name: [*bag] for name, bag in base.boosters.items()}
        self.threads_ = fitting.threads or (1 if len(table.ok) < WORTH_THREADS else 0)
        medians = self.options.medians
        jobs: dict[str, Callable[[PartOfTable], ForestTask]] = {"time": lambda part: time_task(part, fitting, alone, medians)}
        if self.options.blend != 0 and not alone:
            jobs["rank"] = lambda part: rank_task(part, self.options.temperature)
        # What breaks a rule is never chosen: the forest learns from the others.
        if int((table.allowed & ~table.ok).sum()) >= FEWEST_FAILURES:
            jobs["valid"] = valid_task
        trees, leaves, lr, most = self.options.trees, self.options.leaves, self.options.lr, self.options.bags
        assert trees is not None  # decided above
        assert most is not None
        assert leaves is not None
        assert lr is not None
        bags = {"time": most if alone else 1, "rank": most, "valid": 1}
        searched = base is not None or (_search(given, table) and not rough)
        aside = set_aside(table, fitting.seed) if searched else None
        # On 100,000 H100 GEMMs, one fold: 63 bins err by 3.02 % in 21 s, 255 bins by 2.99 % in 26 s.
        fewer = self.options.times_only
        several = len(table.devices) > 1 and base is None
        kinds = Kinds.of(table) if several and alone and self.options.own_trees and not fitting.elsewhere else None
        apart = telling_apart(table.rows) if several else ()
        learned = replace(table, rows=without(table.rows, apart)) if apart else table
        bins = Bins(learned, self.threads_, keep=base is not None, categorical=self.categorical_, fewer=fewer)
        forests = sum((aside is not None) + bags[name] for name in jobs)
        grower = Grower(trees, leaves, lr, fitting, self.threads_, bins, forests)
        whole = PartOfTable(table, np.arange(len(table.ok)))
        for name, task in jobs.items():
            old: list[Any] = [*self.forests_.get(name, []), *[None] * most]
            rounds = trees if aside is None else grower.rounds(name, task(whole.take(~aside)), task(whole.take(aside)), old[0])
            # Grown again on everything: the validation groups are worth more as training data.
            everything = task(whole)
            self.forests_[name] = [grower.grow(name, everything, rounds, bag, old[bag]) for bag in range(bags[name])]
        if kinds is not None and len(kinds) > 1:
            self._grow_own(table, fitting, kinds, grower)
        self.library_ = grow_library_trees(table, self.options.library_trees, fitting.seed)
        if not self.library_ and base is not None and self.options.library_trees:
            # Trees that are not boosted cannot be continued: those of the base are kept if the new data cannot replace them.
            self.library_ = base.library_
        return self

    def _grow_own(self, table: Table, fitting: Fitting, kinds: Kinds, grower: Grower) -> None:
        """Give the forest of times trees for each kind of device, grown on what it misses there."""
        self.gains_ = self.importances()
        bags = self.trees["time"]
        shared = [replace(tree, value=tree.value / len(bags)) for bag in bags for tree in bag]
        medians = self.options.medians or self.options.own_loss == "absolute"
        own = grown(table, fitting, kinds, grower, self.options.own_trees, medians, lambda rows: self._raw("time", rows))
        forests = {name: [tuple(bag) for bag in found] for name, found in self.trees.items() if name != "time"}
        forests["time"] = [joined(shared, own, kinds)]
        self.forests_ = {name: list(bag) for name, bag in unpacked(packed(forests, self.names_))[1].items()}
        self.__dict__.pop("trees", None)

    def predict(self, rows: Rows) -> Output:
        raw = {name: self._raw(name, rows) for name in self.forests_}
        if self.library_:
            raw["library"] = sum_of(self.library_, rows.features)
        if raw.keys() == {"time"}:
            return Output(raw["time"])
        return Output(raw["time"], self.combine(raw, self.target_.log_time(raw["time"], rows)))

    def fails(self, rows: Rows) -> Flags:
        if "valid" not in self.forests_ or not len(rows):
            return super().fails(rows)
        return np.asarray(self._raw("valid", rows) < LIKELY_TO_FAIL)

    def _raw(self, name: str, rows: Rows) -> Floats:
        """What the forests of one name say, on average."""
        return np.asarray(np.mean([self._ask(forest, rows) for forest in self.forests_[name]], axis=0))

    def _ask(self, forest: Booster | PackedForest, rows: Rows) -> Any:
        if isinstance(forest, PackedForest):
            return forest.predict(rows.features)
        # LightGBM has one thread count for the whole process: it must not change under fits that run at the same time.
        return forest.predict(rows.features, raw_score=True, num_threads=self.threads_)

    def combine(self, raw: dict[str, Floats], log_time: Floats) -> Floats:
        """The score to choose by, from the outputs of the forests: low is fast."""
        score = log_time
        if "rank" in raw:
            assert self.options.blend is not None
            # Logits times the temperature are log times up to a constant, so both parts measure regret.
            score = (1.0 - self.options.blend) * score - self.options.blend * self.options.temperature * raw["rank"]
        if "library" in raw:
            score = score + raw["library"]
        if "valid" in raw:
            score = score + np.where(raw["valid"] < LIKELY_TO_FAIL, BEHIND, 0.0)
        return score

    def save(self, folder: Path) -> None:
        if self.packed:
            self.save_packed(folder)
            return
        for name, bag in self.boosters.items():
            for number, forest in enumerate(bag):
                # The number of threads is written into the text; it changes nothing else.
                text = re.sub(r"\[num_threads: \d+\]", "[num_threads: 0]", forest.model_to_string(num_iteration=-1))
                (folder / f"{name}.{number}.lgbm.gz").write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
        self._save_rest(folder)

    def save_packed(self, folder: Path) -> None:
        """Write the weights with all forests in one small file, which numpy alone reads to the same predictions."""
        forests = {name: bags for name, bags in self.trees.items() if name in FORESTS}
        write_arrays(folder / PACKED, packed(forests, self.names_), compress=True)
        self._save_rest(folder)

    def _save_rest(self, folder: Path) -> None:
        if self.library_:
            write_arrays(folder / LIBRARY, as_arrays(self.library_))
        write_arrays(folder / TARGET, {"target": np.array(self.target_.name), "log": np.array(self.target_.log)})

    @classmethod
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        learner = cls(options)
        target = read_arrays(folder / TARGET)
        learner.target_ = Target(str(target["target"]), bool(target["log"]))
        names = learner._load_packed(folder) if (folder / PACKED).exists() else learner._load_texts(folder)
        learner.names_ = tuple(names)
        if (folder / LIBRARY).exists():
            try:
                learner.library_ = from_arrays(read_arrays(folder / LIBRARY), len(names))
            except InvalidValue as error:
                raise damaged(folder / LIBRARY, error) from error
        return learner

    def _load_texts(self, folder: Path) -> list[str]:
        self.forests_, names = {}, None  # the names are those of the first forest; all read the same features
        for name in FORESTS:
            for file in sorted(folder.glob(f"{name}.*.lgbm.gz")):
                forest = load_forest(file, names)
                names = forest.feature_name()
                self.forests_.setdefault(name, []).append(forest)
        if names is None or "time" not in self.forests_:
            raise BadFile(f"{folder} has no time.0.lgbm.gz: train the model again, or restore the file")
        return list(names)

    def _load_packed(self, folder: Path) -> list[str]:
        try:
            names, found = unpacked(read_arrays(folder / PACKED))
            if "time" not in found or not set(found) <= set(FORESTS):
                raise InvalidValue(f"its forests are {', '.join(found) or 'none'}, not {', '.join(FORESTS)}")
        except InvalidValue as error:
            raise BadFile(f"{folder / PACKED} is damaged ({error}): restore the file, or make the slim model again") from error
        self.forests_ = {name: list(found[name]) for name in FORESTS if name in found}
        return list(names)

    @cached_property
    def trees(self) -> dict[str, list[tuple[Tree, ...]]]:
        """All forests as flat arrays, by name and bag; read once from LightGBM's text."""
        found = {
            name: [
                forest.trees() if isinstance(forest, PackedForest) else read_trees(forest.model_to_string(num_iteration=-1))
                for forest in bag
            ]
            for name, bag in self.forests_.items()
        }
        return found | ({"library": [self.library_]} if self.library_ else {})

    def importances(self) -> dict[str, float]:
        if self.gains_ is not None:
            return self.gains_
        gains = np.zeros(len(self.names_))
        for name in ("time", "rank"):
            for forest in self.forests_.get(name, []):
                if isinstance(forest, PackedForest):  # it keeps no gains; the model's importances.json has them
                    return {}
                gain = np.asarray(forest.feature_importance("gain"), dtype=np.float64)
                gains += gain / max(gain.sum(), 1e-300)
        return dict(zip(self.names_, (gains / max(gains.sum(), 1e-300)).tolist(), strict=True))

    def lowered(self, family: Family, values: Collection[str]) -> Boosted:
        if "rank" not in self.trees:
            return Boosted(self.trees)
        assert self.options.blend is not None
        return Boosted(self.trees, 1.0 - self.options.blend, self.options.blend * self.options.temperature)

    def size(self) -> dict[str, int]:
        grown = {
            f"{name}_trees": sum(len(forest) if isinstance(forest, PackedForest) else forest.num_trees() for forest in bag)
            for name, bag in self.forests_.items()
        }
        return grown | ({"library_trees": len(self.library_)} if self.library_ else {})
